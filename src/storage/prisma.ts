import { randomUUID } from "node:crypto";
import { PrismaPg } from "@prisma/adapter-pg";
import { Prisma, PrismaClient } from "../gen/prisma/client.ts";
import { createConcurrencyLimit } from "./concurrency-limit.ts";
import { type Database, runStatement } from "./database.ts";
import { asStorageError } from "./database-errors.ts";

export type PrismaDatabase = Awaited<ReturnType<typeof withPrisma>>;
export type Transaction = Omit<PrismaDatabase["prisma"], "$connect" | "$disconnect" | "$extends" | "$on">;

/** Prisma qualifies table names with the schema; all other statements use the search path. */
const schemaStatement = {
  name: "schema",
  text: "SELECT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass('project')",
};

/** None: the timeouts of the pool, of each statement and, on the server, of an idle transaction end what takes too long. */
const transactionTimeoutMs = 2 ** 31 - 1;

/**
 * A Prisma client on the pool's connections. Throws the same errors as `runStatement`; closed with the pool. What is only read, outside
 * of a change, is read through `reads`, or as `reading` has it: a script with dozens of concurrent lists would leave no connection for
 * other calls.
 */
export async function withPrisma(database: Database) {
  const [row] = await runStatement(database, schemaStatement, []);
  const client = new PrismaClient({
    adapter: new PrismaPg(database.pool, { schema: (row?.[0] as string | undefined) ?? "public" }),
    // Prisma's defaults are 2 s until a transaction has begun, and 5 s for all of it. One of its statements may take longer, several
    // of them much longer, and these limits go on while this process is suspended.
    transactionOptions: { maxWait: transactionTimeoutMs, timeout: transactionTimeoutMs },
  });
  const prisma = client.$extends({
    query: {
      async $allOperations({ args, query }) {
        try {
          return await query(args);
        } catch (error) {
          throw asStorageError(error);
        }
      },
    },
  });
  const limit = createConcurrencyLimit(database);
  const reading = <T>(read: () => Promise<T>) => limit(randomUUID(), read);
  const reads = prisma.$extends({
    query: { $allOperations: ({ args, query }) => reading(() => query(args)) },
  });
  return { ...database, prisma, reading, reads };
}

/** Whether a unique index refused the row. */
export function isUniqueViolation(error: unknown): boolean {
  return error instanceof Prisma.PrismaClientKnownRequestError && error.code === "P2002";
}

/** Whether a foreign key refused the row. */
export function isForeignKeyViolation(error: unknown): boolean {
  return error instanceof Prisma.PrismaClientKnownRequestError && error.code === "P2003";
}
