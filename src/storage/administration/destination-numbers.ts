import type { Act, AuditAction } from "../../core/administration/audit.ts";
import type { DestinationNumberStore } from "../../core/administration/destination-numbers.ts";
import type { DestinationNumber } from "../../core/directory.ts";
import { newId } from "../../core/ids.ts";
import type { DestinationNumber as DestinationNumberRow } from "../../gen/prisma/client.ts";
import type { PrismaDatabase } from "../prisma.ts";
import {
  type Administer,
  isForeignKeyViolation,
  isUniqueViolation,
  type Transaction,
} from "./announcement.ts";

export function createDestinationNumberStore(
  database: PrismaDatabase,
  administer: Administer,
): DestinationNumberStore {
  return {
    async add(number, environment, projectId) {
      try {
        return await administer(
          async (transaction) => {
            const row = await transaction.destinationNumber.create({
              data: { id: newId(), number, environment, projectId },
            });
            if (await isPendingElsewhere(transaction, row)) throw new StillPending();
            return numberOf(row);
          },
          (added) => act("number.added", added),
        );
      } catch (error) {
        if (error instanceof StillPending) return "pending";
        if (isUniqueViolation(error)) return "in_use";
        if (isForeignKeyViolation(error)) return "no_project";
        throw error;
      }
    },

    async list(projectId, environment) {
      if (projectId !== null && (await database.prisma.project.count({ where: { id: projectId } })) === 0) {
        return "no_project";
      }
      const rows = await database.prisma.destinationNumber.findMany({
        where: {
          removedAt: null,
          ...(projectId === null ? {} : { projectId }),
          ...(environment === null ? {} : { environment }),
        },
        orderBy: { id: "asc" },
      });
      return rows.map(numberOf);
    },

    remove: (number) =>
      administer(
        async (transaction) => {
          const row = await transaction.destinationNumber.findFirst({ where: { number, removedAt: null } });
          if (!row) return null;
          const removed = await transaction.$executeRaw`
          UPDATE destination_number SET removed_at = date_trunc('milliseconds', now())
          WHERE id = ${row.id}::uuid AND removed_at IS NULL`;
          return removed === 0 ? null : numberOf(row);
        },
        (removed) => removed && act("number.removed", removed),
      ),
  };
}

/** Thrown to roll back the transaction that has just added the number. */
class StillPending extends Error {}

/**
 * Whether verifications of the other environment are pending on the number: the SMS for them would be taken as this
 * environment's and verify nothing. A process that has not yet been notified of the number's removal may create another one
 * within a second; that one is not verified by a message of this environment either.
 */
async function isPendingElsewhere(
  transaction: Transaction,
  { number, environment }: DestinationNumberRow,
): Promise<boolean> {
  const [row] = await transaction.$queryRaw<{ pending: boolean }[]>`
    SELECT EXISTS (
      SELECT FROM live_code l
      CROSS JOIN LATERAL (SELECT * FROM verification WHERE id = l.verification_id OFFSET 0) v
      WHERE l.destination = ${number} AND l.expires_at > now()
        AND v.status = 'pending' AND v.environment <> ${environment}::environment
    ) AS pending`;
  return row?.pending === true;
}

function act(action: AuditAction, { number, environment, projectId }: DestinationNumber): Act {
  return { action, subject: number, projectId, details: { environment } };
}

function numberOf(row: DestinationNumberRow): DestinationNumber {
  const { number, environment, projectId, createdAt, removedAt } = row;
  return { number, environment, projectId, createdAt, removed: removedAt !== null };
}
