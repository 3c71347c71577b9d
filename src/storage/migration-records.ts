/**
 * What Prisma and this service both know of migrations: the files in `prisma/migrations`, and the records of those applied in
 * `_prisma_migrations`, with Prisma's columns and checksums.
 */
import { hash, randomUUID } from "node:crypto";
import { readdir, readFile } from "node:fs/promises";
import path from "node:path";
import type pg from "pg";
import type { Statements } from "./database.ts";
import { run } from "./migration-client.ts";
import { requirePrivileges } from "./privileges.ts";

const undefinedTable = "42P01";
const undefinedColumn = "42703";
const insufficientPrivilege = "42501";
const invalidSchemaName = "3F000";

export interface Migration {
  readonly name: string;
  readonly sql: string;
}

interface MigrationRecord {
  readonly name: string;
  readonly checksum: string;
  readonly finished: boolean;
}

export async function readMigrations(folder: string): Promise<Migration[]> {
  const entries = await readdir(folder, { withFileTypes: true });
  // By code unit, as Prisma orders them; their names start with a timestamp.
  const names = entries.filter((entry) => entry.isDirectory()).map(({ name }) => name);
  return Promise.all(
    names.sort().map(async (name) => {
      const sql = await readFile(path.join(folder, name, "migration.sql"), "utf8").catch((error: Error) => {
        throw new Error(`migration ${name} cannot be read: ${error.message}`);
      });
      return { name, sql };
    }),
  );
}

/** The tables that a migration creates. */
export const tablesOf = ({ sql }: Migration): string[] =>
  Array.from(sql.matchAll(/^CREATE TABLE "?(\w+)/gm), ([, name = ""]) => name);

/** The same table that Prisma creates. */
const migrationsTable = `
  CREATE TABLE IF NOT EXISTS _prisma_migrations (
    id                  VARCHAR(36) PRIMARY KEY NOT NULL,
    checksum            VARCHAR(64) NOT NULL,
    finished_at         TIMESTAMPTZ,
    migration_name      VARCHAR(255) NOT NULL,
    logs                TEXT,
    rolled_back_at      TIMESTAMPTZ,
    started_at          TIMESTAMPTZ NOT NULL DEFAULT now(),
    applied_steps_count INTEGER NOT NULL DEFAULT 0
  )`;

export async function createMigrationsTable(client: pg.Client): Promise<void> {
  try {
    await run(client, migrationsTable);
  } catch (error) {
    const { code, message } = error as pg.DatabaseError;
    if (code === insufficientPrivilege) {
      throw new Error(
        `${message}: migrations are missing, and its role may not create tables there; let the role own the database or the schema, or start one process as the role that owns the tables`,
      );
    }
    if (code === invalidSchemaName) {
      throw new Error(
        `${message}: its search_path has none that exists and that its role may use; use CREATE SCHEMA … AUTHORIZATION … or GRANT ALL ON SCHEMA … TO …`,
      );
    }
    throw error;
  }
}

/** Without those that are marked as rolled back: to Prisma they are only history, and their migrations count as not applied. */
export async function readRecords(client: pg.Client): Promise<MigrationRecord[]> {
  try {
    const { rows } = await run<MigrationRecord>(
      client,
      `SELECT migration_name AS name, checksum, finished_at IS NOT NULL AS finished
       FROM _prisma_migrations WHERE rolled_back_at IS NULL ORDER BY started_at`,
    );
    return rows;
  } catch (error) {
    const { code } = error as pg.DatabaseError;
    if (code === undefinedTable) return [];
    if (code === insufficientPrivilege) await requirePrivileges(client, ["_prisma_migrations"]);
    if (code !== undefinedColumn) throw error;
    throw new Error("it is not a database of this service: its table _prisma_migrations is not Prisma's");
  }
}

/** Records a migration that the transaction has just applied. */
export async function recordMigration(
  client: pg.Client,
  { name, sql }: Migration,
  startedAt: Date,
): Promise<void> {
  await run(
    client,
    `INSERT INTO _prisma_migrations (id, checksum, migration_name, started_at, finished_at, applied_steps_count)
     VALUES ($1, $2, $3, $4, clock_timestamp(), 1)`,
    { values: [randomUUID(), checksum(sql), name, startedAt] },
  );
}

export function finishedNames(records: MigrationRecord[]): Set<string> {
  return new Set(records.filter(({ finished }) => finished).map(({ name }) => name));
}

export function refuseEdited(records: MigrationRecord[], migrations: Migration[]): void {
  const files = new Map(migrations.map(({ name, sql }) => [name, sql]));
  for (const { name, checksum: recorded } of records) {
    const sql = files.get(name);
    if (sql === undefined || matches(sql, recorded)) continue;
    throw new Error(
      `migration ${name} was edited after it was applied to this database: restore the file, and put the change into a new migration`,
    );
  }
}

/** Ignores with which line endings the file was checked out, as Prisma does. */
function matches(sql: string, expected: string): boolean {
  const unix = sql.replaceAll("\r\n", "\n");
  return [sql, unix, unix.replaceAll("\n", "\r\n")].some((text) => checksum(text) === expected);
}

const checksum = (sql: string) => hash("sha256", sql, "hex");

/**
 * Returns a check that the newest of a folder's migrations, and so all of them, are applied (others may be, too), and that the
 * database takes writes: another database, or a standby, may have taken the original's place.
 */
export async function createSchemaCheck(folder: string): Promise<(database: Statements) => Promise<boolean>> {
  const newest = (await readMigrations(folder)).at(-1)?.name;
  return async (database) => {
    const text = `
      SELECT FROM _prisma_migrations WHERE migration_name = $1 AND finished_at IS NOT NULL
        AND current_setting('transaction_read_only') = 'off'`;
    try {
      const { rows } = await database.query({ text, values: [newest], rowMode: "array" });
      return rows.length > 0;
    } catch (error) {
      if ((error as pg.DatabaseError).code === undefinedTable) return false;
      throw error;
    }
  };
}
