import {
  type Act,
  type Actor,
  type AuditAction,
  type AuditEntry,
  type AuditStore,
  auditedUrl,
} from "../../core/administration/audit.ts";
import { newId } from "../../core/ids.ts";
import type { AuditEntry as AuditEntryRow } from "../../gen/prisma/client.ts";
import type { PrismaDatabase, Transaction } from "../prisma.ts";
import { projectExists } from "./existing-project.ts";

export function createAuditStore(database: PrismaDatabase, actor: Actor): AuditStore {
  const { prisma, reads } = database;
  return {
    add: (act) => writeAuditEntry(prisma, actor, act),

    async list({ projectId, actor: name, tokenId, before, limit }) {
      if (projectId !== null && !(await projectExists(database, projectId))) return "no_project";
      if (tokenId !== null && !(await reads.serviceToken.findUnique({ where: { id: tokenId } }))) {
        return "no_token";
      }
      const rows = await reads.auditEntry.findMany({
        where: {
          ...(projectId === null ? {} : { projectId }),
          ...(name === "" ? {} : { actor: name }),
          ...(before === null ? {} : { id: { lt: before } }),
        },
        orderBy: { id: "desc" },
        take: limit,
      });
      return rows.map(entryOf);
    },
  };
}

export async function writeAuditEntry(
  transaction: Pick<Transaction, "auditEntry">,
  { name, address, requestId }: Actor,
  { action, subject, projectId, details }: Act,
): Promise<void> {
  await transaction.auditEntry.create({
    data: { id: newId(), actor: name, address, requestId, action, subject, projectId, details },
  });
}

function entryOf(row: AuditEntryRow): AuditEntry {
  const { id, occurredAt, actor, address, requestId, action, subject, projectId, details } = row;
  return {
    id,
    occurredAt,
    actor: { name: actor, address, requestId },
    act: {
      action: action as AuditAction,
      subject,
      projectId,
      details: shown(details as Readonly<Record<string, string>>),
    },
  };
}

/** Entries of earlier versions still have a webhook URL's query. */
function shown(details: Readonly<Record<string, string>>): Readonly<Record<string, string>> {
  return details.url === undefined ? details : { ...details, url: auditedUrl(details.url) };
}
