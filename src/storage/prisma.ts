import { PrismaPg } from "@prisma/adapter-pg";
import { PrismaClient } from "../gen/prisma/client.ts";
import { asStorageError, connectTimeoutMs, type Database } from "./database.ts";

export type PrismaDatabase = ReturnType<typeof withPrisma>;

/** A Prisma client on the pool's connections, with the errors of `runStatement`. It ends with the pool. */
export function withPrisma(database: Database) {
  const client = new PrismaClient({
    adapter: new PrismaPg(database.pool),
    // Two seconds by default, which a database that has just come back may need for its first connections.
    transactionOptions: { maxWait: connectTimeoutMs },
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
  return { ...database, prisma };
}
