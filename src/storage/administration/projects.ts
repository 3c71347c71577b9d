import type { Act, AuditAction } from "../../core/administration/audit.ts";
import type { ProjectSettings, ProjectStore } from "../../core/administration/projects.ts";
import { encodeId, newId } from "../../core/ids.ts";
import type { Project } from "../../core/project.ts";
import type { Project as ProjectRow } from "../../gen/prisma/client.ts";
import type { PrismaDatabase } from "../prisma.ts";
import type { Administer } from "./administer.ts";
import { lockProject } from "./existing-project.ts";
import { inRange } from "./list-range.ts";

export function createProjectStore(database: PrismaDatabase, administer: Administer): ProjectStore {
  return {
    add: (settings) =>
      administer(
        async ({ project }) =>
          projectOf(await project.create({ data: { id: newId(), ...columnsOf(settings) } })),
        (project) => act("project.created", project, { name: project.name }),
      ),

    async find(id) {
      const row = await database.reads.project.findUnique({ where: { id } });
      return row && projectOf(row);
    },

    async list(range) {
      const rows = await database.reads.project.findMany(inRange({}, range));
      return rows.map(projectOf);
    },

    async change(id, decide) {
      const result = await administer(
        async (transaction) => {
          await lockProject(transaction, id);
          const current = await transaction.project.findUnique({ where: { id } });
          if (!current) return null;
          const data = columnsOf(decide(projectOf(current)));
          // Pending verifications keep their codes, so messages must still be searched for codes of that length.
          await transaction.$executeRaw`
            INSERT INTO used_code_length (code_format, code_length)
            VALUES (${current.codeFormat}::code_format, ${current.codeLength})
            ON CONFLICT DO NOTHING`;
          const row = await transaction.project.update({ where: { id }, data });
          return { project: projectOf(row), changes: changesOf(current, row) };
        },
        (changed) =>
          changed && Object.keys(changed.changes).length > 0
            ? act("project.updated", changed.project, changed.changes)
            : null,
        id,
      );
      return result ? result.project : null;
    },

    async setSuspended(id, suspended) {
      const { project } = await administer(
        async (transaction) => {
          const changed = await transaction.$executeRaw`
            UPDATE project SET suspended_at = CASE WHEN ${suspended} THEN date_trunc('milliseconds', now()) END
            WHERE id = ${id}::uuid AND (suspended_at IS NOT NULL) <> ${suspended}`;
          const row = await transaction.project.findUnique({ where: { id } });
          return { project: row && projectOf(row), isChanged: changed > 0 };
        },
        ({ project, isChanged }) =>
          project && isChanged ? act(suspended ? "project.suspended" : "project.resumed", project, {}) : null,
        id,
      );
      return project;
    },
  };
}

function act(action: AuditAction, { id }: Project, details: Act["details"]): Act {
  return { action, subject: encodeId("prj_", id), projectId: id, details };
}

/** The settings that differ, by their names in protobuf, with their new values. */
function changesOf(before: ProjectRow, after: ProjectRow): Act["details"] {
  const names = Object.keys(after) as (keyof ProjectRow)[];
  const changed = names.filter((name) => String(before[name]) !== String(after[name]));
  return Object.fromEntries(
    changed.map((name) => [
      name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`),
      after[name] === null ? "none" : String(after[name]),
    ]),
  );
}

function columnsOf(settings: ProjectSettings) {
  return {
    name: settings.name,
    codeFormat: settings.codeFormat,
    codeLength: settings.codeLength,
    validitySeconds: settings.validitySeconds,
    smsTemplate: settings.smsTemplate,
    parentOrigin: settings.parentOrigin,
    returnUrl: settings.returnUrl,
    usageLimit: settings.usageLimit === null ? null : BigInt(settings.usageLimit),
    rateLimitPerMinute: settings.rateLimitPerMinute,
  };
}

function projectOf(row: ProjectRow): Project {
  const { suspendedAt, usageLimit, ...settings } = row;
  return {
    ...settings,
    usageLimit: usageLimit === null ? null : Number(usageLimit),
    suspended: suspendedAt !== null,
  };
}
