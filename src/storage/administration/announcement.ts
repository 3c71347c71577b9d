import type { Act, Actor } from "../../core/administration/audit.ts";
import { Prisma } from "../../gen/prisma/client.ts";
import { asStorageError } from "../database.ts";
import type { CachedDirectory } from "../directory.ts";
import { directoryChannel } from "../notices.ts";
import type { PrismaDatabase } from "../prisma.ts";
import { writeDown } from "./audit.ts";

type Client = PrismaDatabase["prisma"];
export type Transaction = Omit<Client, "$connect" | "$disconnect" | "$extends" | "$on">;

/** Carries out administrative changes and writes them down. `describe` says what was done; null: nothing. */
export type Administer = <T>(
  change: (transaction: Transaction) => Promise<T>,
  describe: (result: T) => Act | null,
) => Promise<T>;

/** A change and its entry in the audit log commit together. */
export function createAdminister(database: PrismaDatabase, actor: Actor): Administer {
  return async (change, describe) => {
    try {
      return await database.prisma.$transaction(async (transaction) => {
        const result = await change(transaction);
        const act = describe(result);
        if (act) await writeDown(transaction, actor, act);
        return result;
      });
    } catch (error) {
      throw asStorageError(error);
    }
  };
}

/**
 * The same for what the directory knows: every process hears of a change as it commits, and this one forgets at once what it
 * believed, so that whoever made it sees it in the next call. All of it is looked up again then, and every open stream's
 * credential.
 */
export function announcing(administer: Administer, directory: Pick<CachedDirectory, "forget">): Administer {
  return async (change, describe) => {
    let isChanged = false;
    try {
      return await administer(async (transaction) => {
        const result = await change(transaction);
        isChanged = describe(result) !== null;
        if (isChanged) await transaction.$executeRaw`SELECT pg_notify(${directoryChannel}, '')`;
        return result;
      }, describe);
    } finally {
      // Also where the commit's answer was lost.
      if (isChanged) directory.forget();
    }
  };
}

/** Prisma's name for a unique index that refused a row. */
export function isUniqueViolation(error: unknown): boolean {
  return error instanceof Prisma.PrismaClientKnownRequestError && error.code === "P2002";
}

/** Prisma's name for a foreign key that refused a row. */
export function isForeignKeyViolation(error: unknown): boolean {
  return error instanceof Prisma.PrismaClientKnownRequestError && error.code === "P2003";
}
