/**
 * Applies `prisma/migrations` at start, with Prisma's own folders, table and lock. So `prisma migrate` works on the same
 * database, but its engine, which has to be downloaded, is not needed. Unlike `prisma migrate deploy`, a migration's statements
 * and its record commit together: a process killed in the middle leaves nothing.
 */
import { setTimeout as delay } from "node:timers/promises";
import type pg from "pg";
import { isDeadlock } from "./database-errors.ts";
import {
  checkServer,
  checkSessions,
  createMigrationClient,
  queryTimeoutMs,
  run,
} from "./migration-client.ts";
import {
  createMigrationsTable,
  finishedNames,
  type Migration,
  readMigrations,
  readRecords,
  recordMigration,
  refuseEdited,
  tablesOf,
} from "./migration-records.ts";
import { socketOf } from "./pooled-client.ts";
import { requirePrivileges } from "./privileges.ts";
import { giveUpVanishedClient, requiredSettings } from "./session-settings.ts";

/** Retries after a deadlock, per start; each has a new chance. */
const mostDeadlocks = 10;

/**
 * The key of Prisma's advisory lock (prisma-engines, sql-schema-connector). Prisma holds it for its session
 * and we for one transaction, which also works behind a transaction pooler; both exclude each other.
 */
const prismaLock = 72_707_369;

const usualLockTimeoutMs = 30_000;
/**
 * How long a migration waits for a table at a time. Whatever else needs the table waits behind it, even if those who hold it, a
 * backup or a report, only read: a statement of the service, which has 8 s, must not fail for that. Longer than Postgres's
 * `deadlock_timeout`, after which an autovacuum in progress gives way.
 */
const tableLockTimeoutMs = 3_000;
/** How long those who have waited behind it then have the table to themselves. */
const yieldMs = 2_000;

const lockNotAvailable = "55P03";

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
  const client = createMigrationClient(connection);
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

const isLockTimeout = (error: unknown) => (error as pg.DatabaseError | undefined)?.code === lockNotAvailable;

/**
 * Checks without the lock, so that a start with nothing to do neither waits nor writes. Only a clear yes counts: an unfinished
 * row may be another process's work in progress, which only the lock can tell.
 */
async function isUpToDate(client: pg.Client, migrations: Migration[]): Promise<boolean> {
  const rows = await readRecords(client);
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
    const rows = await readRecords(client);
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

async function lock(client: pg.Client, lockTimeoutMs: number): Promise<void> {
  try {
    await run(client, `SELECT pg_advisory_xact_lock(${prismaLock})`, {
      timeoutMs: lockTimeoutMs + queryTimeoutMs,
    });
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
  await recordMigration(client, { name, sql }, startedAt);
}

/** The server's message, its hint, and the line of the file that they refer to. */
function describe(error: unknown, sql: string): string {
  const { message, hint, position } = error as pg.DatabaseError;
  const advised = hint === undefined ? message : `${message} (${hint})`;
  if (position === undefined) return advised;
  const line = sql.slice(0, Number(position)).split("\n").length;
  return `${advised} (line ${line})`;
}
