import { PrismaPg } from "@prisma/adapter-pg";
import { PrismaClient } from "../gen/prisma/client.ts";
import { connectTimeoutMs, type Database } from "./database.ts";

export interface PrismaDatabase extends Database {
  readonly prisma: PrismaClient;
}

/** A Prisma client on the pool's connections. It ends with the pool. */
export function withPrisma(database: Database): PrismaDatabase {
  const prisma = new PrismaClient({
    adapter: new PrismaPg(database.pool),
    // Two seconds by default, which a database that has just come back may need for its first connections.
    transactionOptions: { maxWait: connectTimeoutMs },
  });
  return { ...database, prisma };
}
