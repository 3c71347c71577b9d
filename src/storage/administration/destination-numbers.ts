import { setTimeout as delay } from "node:timers/promises";
import type { Act, AuditAction } from "../../core/administration/audit.ts";
import type { DestinationNumberStore } from "../../core/administration/destination-numbers.ts";
import type { DestinationNumber } from "../../core/directory.ts";
import { newId } from "../../core/ids.ts";
import { type Environment, validityRange } from "../../core/project.ts";
import type { DestinationNumber as DestinationNumberRow } from "../../gen/prisma/client.ts";
import { freshSeconds } from "../creation-batch.ts";
import {
  isForeignKeyViolation,
  isUniqueViolation,
  type PrismaDatabase,
  type Transaction,
} from "../prisma.ts";
import type { Administer } from "./administer.ts";
import { projectExists } from "./existing-project.ts";
import { inRange } from "./list-range.ts";

export function createDestinationNumberStore(
  database: PrismaDatabase,
  administer: Administer,
): DestinationNumberStore {
  async function add(
    number: string,
    environment: Environment,
    projectId: string | null,
    signal?: AbortSignal,
    settledRemoval?: string,
  ): ReturnType<DestinationNumberStore["add"]> {
    try {
      return await administer(
        async (transaction) => {
          const row = await transaction.destinationNumber.create({
            data: { id: newId(), number, environment, projectId },
          });
          // The number must not be added seconds after its administrator has given up: the insertion, too, may have waited, for a removal
          // or another addition of the number.
          signal?.throwIfAborted();
          const removal = await otherRemoval(transaction, row);
          if (removal !== null) {
            if (await isPendingElsewhere(transaction, row)) throw new StillPending();
            // It may have been added there and removed again during the wait.
            if (removal.sinceMs < settledMs && removal.at !== settledRemoval) throw new JustRemoved(removal);
          }
          return numberOf(row);
        },
        (added) => act("number.added", added),
      );
    } catch (error) {
      if (error instanceof JustRemoved) {
        const { at, sinceMs } = error.removal;
        if (sinceMs < settlingMs) await pause(settlingMs - sinceMs, signal);
        await untilCreationsEnd(signal);
        return add(number, environment, projectId, signal, at);
      }
      if (error instanceof StillPending) return "pending";
      if (isUniqueViolation(error)) return "in_use";
      if (isForeignKeyViolation(error)) return "no_project";
      throw error;
    }
  }

  /** Waits for the creations, of whichever numbers, whose statements are at work now. */
  async function untilCreationsEnd(signal?: AbortSignal): Promise<void> {
    let underWay = await creationsUnderWay(database);
    while (underWay.size > 0) {
      await pause(pollMs, signal);
      underWay = underWay.intersection(await creationsUnderWay(database));
    }
  }

  return {
    add,

    async list(projectId, environment, range) {
      if (projectId !== null && !(await projectExists(database, projectId))) return "no_project";
      const where = {
        removedAt: null,
        ...(projectId === null ? {} : { projectId }),
        ...(environment === null ? {} : { environment }),
      };
      const rows = await database.reads.destinationNumber.findMany(inRange(where, range));
      return rows.map((row) => ({ ...numberOf(row), id: row.id }));
    },

    remove: (number) =>
      administer(
        async (transaction) => {
          // An addition to the other environment counts from the removal, which may have to wait for locks before it commits.
          await transaction.$queryRaw`
          SELECT id FROM destination_number WHERE number = ${number} AND removed_at IS NULL FOR NO KEY UPDATE`;
          const row = await transaction.destinationNumber.findFirst({ where: { number, removedAt: null } });
          if (!row) return null;
          const removed = await transaction.$executeRaw`
          UPDATE destination_number SET removed_at = date_trunc('milliseconds', statement_timestamp())
          WHERE id = ${row.id}::uuid AND removed_at IS NULL`;
          return removed === 0 ? null : numberOf(row);
        },
        (removed) => removed && act("number.removed", removed),
      ),
  };
}

interface Removal {
  /** The database's text, which tells one removal from another. */
  readonly at: string;
  /** 0 also if it is ahead of the database's clock, which was then set back. */
  readonly sinceMs: number;
}

/** Thrown to roll back the transaction that has just added the number. */
class StillPending extends Error {}

/** The same, if creations that chose the number before its removal may still be under way. */
class JustRemoved extends Error {
  readonly removal: Removal;

  constructor(removal: Removal) {
    super();
    this.removal = removal;
  }
}

/**
 * How long after a number's removal creations on it may still begin a statement that does not look whether it is in use: a process
 * without notice of it caches the number for up to a second, and a creation may make its id and choose the number then. With a margin
 * for that process's estimate of the database's clock.
 */
const settlingMs = 1_000 + freshSeconds * 1_000 + 500;

/** By then those statements have ended, too, with a margin: none may take longer than eight seconds. */
const settledMs = settlingMs + 15_000;

/** Interval of the question which statements are still at work. */
const pollMs = 50;

async function pause(milliseconds: number, signal?: AbortSignal): Promise<void> {
  await delay(milliseconds, undefined, { ...(signal && { signal }) }).catch(() => {});
  signal?.throwIfAborted();
}

/**
 * The transactions that write to the tables that a creation writes to. Its statement first locks them all, one after the other: if
 * another transaction holds up one of these locks, it has, or waits for, at least one.
 */
async function creationsUnderWay({ prisma }: PrismaDatabase): Promise<Set<string>> {
  const rows = await prisma.$queryRaw<{ id: string }[]>`
    SELECT virtualtransaction AS id FROM pg_locks
    WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database())
      AND relation IN (
        'usage'::regclass, 'verification'::regclass, 'idempotency_record'::regclass, 'live_code'::regclass
      ) AND mode = 'RowExclusiveLock'`;
  return new Set(rows.map(({ id }) => id));
}

/** When everything that was created on a removed number has expired, with a minute for what was created after the removal. */
const expiredMs = validityRange.max * 1_000 + 60_000;

/**
 * The number's last removal from the other environment; null if it never served that, or so long ago that nothing can be pending
 * on it: then there is no need to look through its codes, of which a busy number has millions.
 */
async function otherRemoval(
  transaction: Transaction,
  { number, environment }: DestinationNumberRow,
): Promise<Removal | null> {
  const [row] = await transaction.$queryRaw<Removal[]>`
    SELECT removed_at::text AS at, greatest(0, extract(epoch FROM now() - removed_at) * 1000)::float8 AS "sinceMs"
    FROM destination_number
    WHERE number = ${number} AND environment <> ${environment}::environment
      AND removed_at > now() - make_interval(secs => ${expiredMs / 1_000})
    ORDER BY removed_at DESC LIMIT 1`;
  return row ?? null;
}

/**
 * Whether verifications of the other environment are pending on the number: the SMS for them would be taken as this
 * environment's and verify nothing.
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
