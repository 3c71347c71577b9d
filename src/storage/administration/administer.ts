import type { Act, Actor } from "../../core/administration/audit.ts";
import type { ConcurrencyLimit } from "../concurrency-limit.ts";
import { asStorageError } from "../database-errors.ts";
import type { CachedDirectory } from "../directory.ts";
import { directoryChannel } from "../notices.ts";
import type { PrismaDatabase, Transaction } from "../prisma.ts";
import { writeAuditEntry } from "./audit.ts";

/**
 * Makes administrative changes and writes them to the audit log. `describe` returns the entry; null: nothing was changed.
 * `projectId`: the project that `change` locks, if that is known before.
 */
export type Administer = <T>(
  change: (transaction: Transaction) => Promise<T>,
  describe: (result: T) => Act | null,
  projectId?: string,
) => Promise<T>;

/**
 * A change and its entry in the audit log commit together. `limit` is that of all actors: a transaction that waits for the lock
 * of a project holds a connection meanwhile, and a script with a hundred concurrent calls would leave none for other calls.
 * Changes of one project, which would wait for each other's lock, run one at a time, and projects take turns: another project can
 * be suspended meanwhile.
 */
export function createAdminister(
  database: PrismaDatabase,
  actor: Actor,
  limit: ConcurrencyLimit,
): Administer {
  return async (change, describe, projectId = actor.requestId) => {
    try {
      return await limit(projectId, () => {
        database.requireCommits();
        return database.prisma.$transaction(async (transaction) => {
          const result = await change(transaction);
          const act = describe(result);
          if (act) await writeAuditEntry(transaction, actor, act);
          return result;
        });
      });
    } catch (error) {
      throw asStorageError(error);
    }
  };
}

/**
 * The same for what the directory caches: every process is notified of a change when it commits, and this one drops its cache
 * at once, so that the administrator's next call sees the change. Everything is then looked up again, including the credential
 * of every open stream.
 */
export function announcing(administer: Administer, directory: Pick<CachedDirectory, "forget">): Administer {
  return async (change, describe, projectId) => {
    let isChanged = false;
    try {
      return await administer(
        async (transaction) => {
          const result = await change(transaction);
          isChanged = describe(result) !== null;
          if (isChanged) await transaction.$executeRaw`SELECT pg_notify(${directoryChannel}, '')`;
          return result;
        },
        describe,
        projectId,
      );
    } finally {
      // Also if the answer to the commit was lost.
      if (isChanged) directory.forget();
    }
  };
}
