/**
 * Applies `prisma/migrations` at start, with Prisma's own folders, table and lock. So `prisma migrate` works on the same
 * database, but its engine, which has to be downloaded, is not needed. Unlike `prisma migrate deploy`, a migration's statements
 * and its record commit together: a process killed in the middle leaves nothing.
 */
import { hash, randomUUID } from "node:crypto";
import { readdir, readFile } from "node:fs/promises";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import pg from "pg";
import type { Statements } from "./database.ts";
import { isDeadlock } from "./database-errors.ts";
import { failWithLoss, socketOf } from "./pooled-client.ts";
import { requirePrivileges } from "./privileges.ts";
import { findUnacceptableSetting, giveUpVanishedClient, requiredSettings } from "./session-settings.ts";

/** Retries after a deadlock, per start; each has a new chance. */
const mostDeadlocks = 10;

/**
 * The key of Prisma's advisory lock (prisma-engines, sql-schema-connector). Prisma holds it for its session
 * and we for one transaction, which also works behind a transaction pooler; both exclude each other.
 */
const prismaLock = 72_707_369;
/** A start without a database has to end within 15 s, also on a machine that takes seconds to load the program. */
const connectTimeoutMs = 8_000;
const queryTimeoutMs = 10_000;
/**
 * Nothing passes while a migration builds an index for minutes, and some firewalls forget a connection after one, without telling
 * either end. Also the start would otherwise wait for two hours for a server that has vanished.
 */
const keepAliveDelayMs = 45_000;
const usualLockTimeoutMs = 30_000;
/**
 * How long a migration waits for a table at a time. Whatever else needs the table waits behind it, even if those who hold it, a
 * backup or a report, only read: a statement of the service, which has 8 s, must not fail for that. Longer than Postgres's
 * `deadlock_timeout`, after which an autovacuum in progress gives way.
 */
const tableLockTimeoutMs = 3_000;
/** How long those who have waited behind it then have the table to themselves. */
const yieldMs = 2_000;

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

const lockNotAvailable = "55P03";
const undefinedTable = "42P01";
const undefinedColumn = "42703";
const insufficientPrivilege = "42501";
const invalidSchemaName = "3F000";

/** A step that takes longer than this is reported, and then again at the interval. */
const slowAfterMs = 1_000;
const reportEveryMs = 10_000;

/** What a start is at that is not done within a second. Whoever watches it must be able to tell it from one that hangs. */
export interface MigrationProgress {
  /**
   * `others_migrate`: another process migrates the database, and this one waits for it. `applies`: the migration is in progress;
   * it may be waiting for a table. `yields`: others use a table that it needs; it lets them finish, and is then applied again.
   * `applied`: reported once, of a migration that was reported before.
   */
  readonly step: "others_migrate" | "applies" | "yields" | "applied";
  /** Null while others migrate. */
  readonly migration: string | null;
  /** Since the step began; of `applied`, what the migration took in all. */
  readonly seconds: number;
}

type Report = (progress: MigrationProgress) => void;

interface Migration {
  readonly name: string;
  readonly sql: string;
}

interface MigrationRow {
  readonly name: string;
  readonly checksum: string;
  readonly finished: boolean;
}

/**
 * Brings the database up to the migrations in `folder` and returns the names of those applied. Safe to run from several
 * processes at once: one applies, the others wait. Migrations in the database that `folder` does not have are left alone, so
 * that an older process can start beside a newer schema.
 *
 * Rejects, with the migration's name, when an applied file was edited, when a migration is recorded as failed, and when one
 * fails now. Rejects also when Prisma's lock, or one that a migration needs, cannot be acquired within `lockTimeoutMs`; when the
 * database is older than Postgres 15, not in UTF-8, read-only or another program's; when its role may not use the tables; and
 * when `signal` aborts, which rolls back the migration in progress.
 */
export async function applyMigrations(
  connection: string | pg.ClientConfig,
  options: {
    folder: string;
    /**
     * Behind a pooler, sessions are shared with other programs: the settings that we would set for a session must be its
     * defaults.
     */
    sharesSessions?: boolean;
    lockTimeoutMs?: number;
    signal?: AbortSignal;
    onProgress?: Report;
  },
): Promise<{ applied: string[] }> {
  const migrations = await readMigrations(options.folder);
  options.signal?.throwIfAborted();
  const client = new pg.Client({
    ...(typeof connection === "string" ? { connectionString: connection } : connection),
    connectionTimeoutMillis: connectTimeoutMs,
    keepAlive: true,
    keepAliveInitialDelayMillis: keepAliveDelayMs,
  });
  failWithLoss(client);
  // `client.end()` would wait for the answer to the statement in flight.
  const breakOff = () => socketOf(client).destroy();
  options.signal?.addEventListener("abort", breakOff, { once: true });
  await client.connect().catch((error) => {
    // It may have failed in the driver alone, for example for lack of a password, with the server still waiting for one.
    client.end().catch(() => undefined);
    throw error;
  });
  try {
    await checkServer(client);
    // Migrations, too, write times as text.
    await (options.sharesSessions ? checkSessions(client) : run(client, requiredSettings));
    const applied = (await isUpToDate(client, migrations))
      ? []
      : await applyMissing(client, migrations, options);
    await requirePrivileges(client, migrations.flatMap(tablesOf));
    return { applied };
  } finally {
    options.signal?.removeEventListener("abort", breakOff);
    await client.end().catch(() => undefined);
  }
}

/** Returns the names of those applied. */
async function applyMissing(
  client: pg.Client,
  migrations: Migration[],
  options: {
    readonly lockTimeoutMs?: number;
    readonly signal?: AbortSignal;
    readonly onProgress?: Report;
  },
): Promise<string[]> {
  const lockTimeoutMs = options.lockTimeoutMs ?? usualLockTimeoutMs;
  const applied: string[] = [];
  for (let deadlocks = 0; ; ) {
    try {
      const name = await applyNext(client, migrations, { ...options, lockTimeoutMs });
      if (name === undefined) return applied;
      applied.push(name);
    } catch (error) {
      // The deadlock was with processes that run beside this one. Nothing of the migration was kept.
      if (!isDeadlock((error as Error).cause) || ++deadlocks > mostDeadlocks) throw error;
    }
  }
}

/** The tables that a migration creates. */
const tablesOf = ({ sql }: Migration): string[] =>
  Array.from(sql.matchAll(/^CREATE TABLE "?(\w+)/gm), ([, name = ""]) => name);

const isLockTimeout = (error: unknown) => (error as pg.DatabaseError | undefined)?.code === lockNotAvailable;

/**
 * Returns a check that all of a folder's migrations are applied (others may be, too) and that the database takes writes:
 * another database, or a standby, may have taken the original's place.
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

/** By `server_version_num`. Older versions are not tested, though they seem to work. */
const oldestVersion = 150_000;

/**
 * Rejects servers that are too old, not in UTF-8 or read-only. In SQL_ASCII, for example, lengths are in bytes: a long message
 * in Korean would be refused as oversized.
 */
async function checkServer(client: pg.Client): Promise<void> {
  const { rows } = await run<{ number: number; version: string; encoding: string; isReadOnly: boolean }>(
    client,
    `SELECT current_setting('server_version_num')::int AS number, current_setting('server_version') AS version,
            current_setting('server_encoding') AS encoding,
            current_setting('transaction_read_only')::bool AS "isReadOnly"`,
  );
  const { number = 0, version = "", encoding = "", isReadOnly } = rows[0] ?? {};
  if (number < oldestVersion) {
    // After a blank follows the name of the packager.
    const [bare] = version.split(" ");
    throw new Error(`PostgreSQL ${bare} is too old: use ${oldestVersion / 10_000} or newer`);
  }
  if (encoding !== "UTF8") {
    throw new Error(
      `its encoding is ${encoding} and must be UTF8: use CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0`,
    );
  }
  if (isReadOnly) throw new Error("it is read-only: it is a standby, or default_transaction_read_only is on");
}

async function checkSessions(client: pg.Client): Promise<void> {
  const fault = await findUnacceptableSetting(client);
  if (fault === undefined) return;
  throw new Error(
    `its sessions count as a pooler's (because of DATABASE_NOTICES_URL or DATABASE_PREPARED_STATEMENTS=false), and they start with ${fault.isNow}: run ${fault.remedy}`,
  );
}

async function readMigrations(folder: string): Promise<Migration[]> {
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

/**
 * Checks without the lock, so that a start with nothing to do neither waits nor writes. Only a clear yes counts: an unfinished
 * row may be another process's work in progress, which only the lock can tell.
 */
async function isUpToDate(client: pg.Client, migrations: Migration[]): Promise<boolean> {
  const rows = await readRows(client);
  if (rows.some(({ finished }) => !finished)) return false;
  refuseEdited(rows, migrations);
  const finished = finishedNames(rows);
  return migrations.every(({ name }) => finished.has(name));
}

/** One transaction: lock, look, apply the first that is missing, record it. Undefined if none is missing. */
async function applyNext(
  client: pg.Client,
  migrations: Migration[],
  {
    lockTimeoutMs,
    signal,
    onProgress = () => {},
  }: { readonly lockTimeoutMs: number; readonly signal?: AbortSignal; readonly onProgress?: Report },
): Promise<string | undefined> {
  try {
    await run(
      client,
      // No timeout of the role or the database ends a migration, however long it takes (`transaction_timeout` is new in Postgres
      // 17). `client_connection_check_interval` lets the server notice during a long statement that this process was killed;
      // without it the lock would stay with the dead session until the statement ends.
      `BEGIN;
       SET LOCAL statement_timeout = 0;
       SET LOCAL lock_timeout = ${lockTimeoutMs};
       SET LOCAL idle_in_transaction_session_timeout = 0;
       SELECT set_config('transaction_timeout', '0', true) WHERE current_setting('transaction_timeout', true) IS NOT NULL;
       SET LOCAL client_connection_check_interval = '1s';
       ${giveUpVanishedClient("SET LOCAL")}`,
    );
    await reportedIfSlow(onProgress, "others_migrate", null, () => lock(client, lockTimeoutMs));
    await createMigrationsTable(client);
    const rows = await readRows(client);
    const failed = rows.find(({ finished }) => !finished);
    if (failed !== undefined) {
      throw new Error(
        `migration ${failed.name} is recorded as failed: repair the database, then record that with "prisma migrate resolve"`,
      );
    }
    refuseEdited(rows, migrations);
    const finished = finishedNames(rows);
    const next = migrations.find(({ name }) => !finished.has(name));
    if (next !== undefined) {
      await run(
        client,
        `SET LOCAL lock_timeout = ${Math.min(tableLockTimeoutMs, lockTimeoutMs)}; SAVEPOINT untouched`,
      );
      const { reportApplied } = await applyUntil(performance.now() + lockTimeoutMs, client, next, {
        signal,
        onProgress,
      });
      await commit(client, next);
      reportApplied();
    } else {
      await run(client, "COMMIT");
    }
    return next?.name;
  } catch (error) {
    await run(client, "ROLLBACK").catch(() => undefined);
    throw error;
  }
}

/** Everything that takes time was done before, so a commit without an answer most likely waits for a synchronous standby. */
async function commit(client: pg.Client, { name }: Migration): Promise<void> {
  try {
    await run(client, "COMMIT");
  } catch (error) {
    if ((error as Error).message !== "Query read timeout") throw error;
    throw new Error(
      `the commit of migration ${name} was not answered within ${queryTimeoutMs / 1000} s: if it waits for a synchronous standby, it is done once one is there`,
      { cause: error },
    );
  }
}

async function createMigrationsTable(client: pg.Client): Promise<void> {
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

async function lock(client: pg.Client, lockTimeoutMs: number): Promise<void> {
  try {
    await run(client, `SELECT pg_advisory_xact_lock(${prismaLock})`, lockTimeoutMs + queryTimeoutMs);
  } catch (error) {
    if (!isLockTimeout(error)) throw error;
    throw new Error(
      `another process is migrating the database, and did not finish within ${lockTimeoutMs / 1000} s`,
    );
  }
}

/**
 * Applies a migration, again and again if others use a table that it needs, until then at least. `reportApplied` is for when it
 * has committed.
 */
async function applyUntil(
  until: number,
  client: pg.Client,
  migration: Migration,
  { signal, onProgress }: { readonly signal: AbortSignal | undefined; readonly onProgress: Report },
): Promise<{ reportApplied(): void }> {
  const { name } = migration;
  const since = performance.now();
  let isReported = false;
  const report: Report = (progress) => {
    isReported = true;
    onProgress(progress);
  };
  while (!(await reportedIfSlow(report, "applies", name, () => hasApplied(client, migration, until)))) {
    report({ step: "yields", migration: name, seconds: secondsSince(since) });
    await delay(yieldMs, undefined, { signal });
  }
  return {
    reportApplied() {
      if (isReported) onProgress({ step: "applied", migration: name, seconds: secondsSince(since) });
    },
  };
}

/** Does a step, and reports that it is in progress once it has taken long, and then at intervals. */
async function reportedIfSlow<Result>(
  report: Report,
  step: MigrationProgress["step"],
  migration: string | null,
  work: () => Promise<Result>,
): Promise<Result> {
  const since = performance.now();
  const tell = () => report({ step, migration, seconds: secondsSince(since) });
  let timer = setTimeout(() => {
    tell();
    timer = setInterval(tell, reportEveryMs);
  }, slowAfterMs);
  try {
    return await work();
  } finally {
    clearTimeout(timer);
  }
}

const secondsSince = (start: number) => Math.round((performance.now() - start) / 100) / 10;

/**
 * Applies a migration. Resolves to false, with its locks released, if a table was not free in time and it is not yet `until`.
 * Prisma's lock is kept: otherwise another start would wait for the table at once, and nobody else would ever have it.
 */
async function hasApplied(client: pg.Client, migration: Migration, until: number): Promise<boolean> {
  try {
    await apply(client, migration);
    return true;
  } catch (error) {
    if (!isLockTimeout((error as Error).cause) || performance.now() > until) throw error;
    await run(client, "ROLLBACK TO untouched");
    return false;
  }
}

async function apply(client: pg.Client, { name, sql }: Migration): Promise<void> {
  const startedAt = new Date();
  const transaction = "SELECT pg_current_xact_id()::text AS id";
  const before = await run(client, transaction);
  try {
    // A simple query, which may hold many statements. No timeout, however long they take.
    await client.query(sql);
  } catch (error) {
    throw new Error(`migration ${name} failed and was rolled back: ${describe(error, sql)}`, {
      cause: error,
    });
  }
  const after = await run(client, transaction);
  if (before.rows[0]?.id !== after.rows[0]?.id) {
    throw new Error(
      `migration ${name} ends the transaction it runs in: remove BEGIN, COMMIT and ROLLBACK from it`,
    );
  }
  await client.query({
    text: `
      INSERT INTO _prisma_migrations (id, checksum, migration_name, started_at, finished_at, applied_steps_count)
      VALUES ($1, $2, $3, $4, clock_timestamp(), 1)`,
    values: [randomUUID(), checksum(sql), name, startedAt],
    ...{ query_timeout: queryTimeoutMs },
  });
}

/** To Prisma a row that is marked as rolled back is only history: its migration counts as not applied. */
async function readRows(client: pg.Client): Promise<MigrationRow[]> {
  try {
    const { rows } = await run<MigrationRow>(
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

function finishedNames(rows: MigrationRow[]): Set<string> {
  return new Set(rows.filter(({ finished }) => finished).map(({ name }) => name));
}

function refuseEdited(rows: MigrationRow[], migrations: Migration[]): void {
  const files = new Map(migrations.map(({ name, sql }) => [name, sql]));
  for (const row of rows) {
    const sql = files.get(row.name);
    if (sql === undefined || matches(sql, row.checksum)) continue;
    throw new Error(
      `migration ${row.name} was edited after it was applied to this database: restore the file, and put the change into a new migration`,
    );
  }
}

/** Ignores with which line endings the file was checked out, as Prisma does. */
function matches(sql: string, expected: string): boolean {
  const unix = sql.replaceAll("\r\n", "\n");
  return [sql, unix, unix.replaceAll("\n", "\r\n")].some((text) => checksum(text) === expected);
}

const checksum = (sql: string) => hash("sha256", sql, "hex");

/** The server's message, its hint, and the line of the file that they refer to. */
function describe(error: unknown, sql: string): string {
  const { message, hint, position } = error as pg.DatabaseError;
  const advised = hint === undefined ? message : `${message} (${hint})`;
  if (position === undefined) return advised;
  const line = sql.slice(0, Number(position)).split("\n").length;
  return `${advised} (line ${line})`;
}

/** Runs a short statement with a timeout, without which a frozen database would never let it end. */
function run<Row extends pg.QueryResultRow>(
  client: pg.Client,
  text: string,
  timeoutMs = queryTimeoutMs,
): Promise<pg.QueryResult<Row>> {
  const query: pg.QueryConfig & { query_timeout: number } = { text, query_timeout: timeoutMs };
  return client.query<Row>(query);
}
