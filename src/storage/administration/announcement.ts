import type { Act, Actor } from "../../core/administration/audit.ts";
import { Prisma } from "../../gen/prisma/client.ts";
import { asStorageError } from "../database.ts";
import type { CachedDirectory } from "../directory.ts";
import { directoryChannel } from "../notices.ts";
import type { PrismaDatabase } from "../prisma.ts";
import { writeDown } from "./audit.ts";

type Client = PrismaDatabase["prisma"];
export type Transaction = Omit<Client, "$connect" | "$disconnect" | "$extends" | "$on">;

/**
 * Carries out administrative changes so that every process knows of them, and writes them down. `describe` says what was
 * done; null: nothing.
 */
export type Administer = <T>(
  change: (transaction: Transaction) => Promise<T>,
  describe: (result: T) => Act | null,
) => Promise<T>;

/**
 * A change, its entry in the audit log and its announcement commit together; this process forgets at once what it
 * believed, so that whoever made the change sees it in the next call.
 */
export function createAdminister(
  database: PrismaDatabase,
  directory: CachedDirectory,
  actor: Actor,
): Administer {
  return async (change, describe) => {
    try {
      return await database.prisma.$transaction(async (transaction) => {
        const result = await change(transaction);
        const act = describe(result);
        if (act) await writeDown(transaction, actor, act);
        await transaction.$executeRaw`SELECT pg_notify(${directoryChannel}, '')`;
        return result;
      });
    } catch (error) {
      throw asStorageError(error);
    } finally {
      directory.forget();
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
