/** Wires the database: reaching it, migrating it, opening its pool, and listening for its notices. */

import path from "node:path";
import type pg from "pg";
import type { Logger } from "pino";
import type { Closers } from "./closers.ts";
import type { Config } from "./config.ts";
import type { Tracing } from "./core/tracing.ts";
import { ineffectiveParameters } from "./database-url.ts";
import type { createMetrics } from "./ops/metrics.ts";
import type { DatabaseState } from "./ops/readiness.ts";
import { oneLine, SettingError, withDatabaseErrors, withEmbeddedDatabaseErrors } from "./setting-errors.ts";
import { readBacklog } from "./storage/backlog.ts";
import { type Database, openDatabase } from "./storage/database.ts";
import { isAnsweredWithError } from "./storage/database-errors.ts";
import { startEmbeddedPostgres } from "./storage/embedded/embedded-postgres.ts";
import { createSchemaCheck } from "./storage/migration-records.ts";
import { applyMigrations, type MigrationProgress } from "./storage/migrations.ts";
import { createNotices, type NoticeListeners, requireNotices, sendNotice } from "./storage/notices.ts";
import { readLeakingLogSettings } from "./storage/server-log.ts";
import { tracedBatches, tracedStatements } from "./tracing/traced-storage.ts";

const migrations = path.join(import.meta.dirname, "../prisma/migrations");

export interface OpenStorage {
  readonly database: Database;
  /** The database's state at the moment; never rejects, and waits for as long as a statement may take. */
  checkDatabase(): Promise<DatabaseState>;
  /** Resolves once notices arrive. */
  listen(listeners: Omit<NoticeListeners, "onError">): Promise<void>;
}

/** Starts the embedded Postgres, or uses the configured one, migrates it, and opens the pool. */
export async function openStorage(parts: {
  readonly config: Config;
  readonly metrics: ReturnType<typeof createMetrics>;
  readonly tracing: Tracing | null;
  readonly log: Logger;
  readonly closers: Closers;
  /** Ends the start of the embedded Postgres and the wait for another process's migration. */
  readonly signal: AbortSignal;
}): Promise<OpenStorage> {
  const { config, log } = parts;
  const connection = await connectionOf(parts);
  warnOfParameters(config, log);
  await migrate(connection, parts);
  const isUsable = await createSchemaCheck(migrations);
  const database = openPool(connection, parts);
  if (config.databaseUrl !== null) await warnOfServerLog(database, log);
  const checkDatabase = createDatabaseCheck({ isUsable: () => isUsable(database), log });
  parts.metrics.storage.watchDatabase(async () => (await checkDatabase()) === "usable");
  return {
    database,
    checkDatabase,
    listen: (listeners) => startNotices(connection, { ...parts, database, checkDatabase, listeners }),
  };
}

function createDatabaseCheck({ isUsable, log }: { isUsable(): Promise<boolean>; readonly log: Logger }) {
  return async (): Promise<DatabaseState> => {
    try {
      return (await isUsable()) ? "usable" : "database_unfit";
    } catch (error) {
      if (!isAnsweredWithError(error)) return "database_away";
      log.warn({ err: error }, "not ready: the database answered with an error");
      return "database_refusing";
    }
  };
}

async function connectionOf(parts: {
  readonly config: Config;
  readonly closers: Closers;
  readonly signal: AbortSignal;
}): Promise<pg.ClientConfig> {
  const { databaseUrl, dataDir } = parts.config;
  if (databaseUrl !== null) return { connectionString: databaseUrl };
  const postgres = await startEmbeddedPostgres({ dataDir, signal: parts.signal }).catch((error: Error) => {
    throw new SettingError(oneLine(error.message));
  });
  parts.closers.add(() => postgres.stop());
  void postgres.exited.then((reason) => {
    // Ends the process like any uncaught error: cleanly, with a non-zero exit code.
    setImmediate(() => {
      throw new Error(`the embedded Postgres died and does not restart: ${reason}`);
    });
  });
  return postgres.connection;
}

/** Until it has migrated, a process can be asked nothing: these lines are all that tells it from one that hangs. */
const migrationTexts: Record<MigrationProgress["step"], string> = {
  others_migrate: "another process migrates the database: this one waits for it",
  applies: "a migration is in progress",
  yields: "others use a table that a migration needs: it lets them finish, and is then applied again",
  applied: "a migration was applied",
};

async function migrate(
  connection: pg.ClientConfig,
  { config, log, signal }: { readonly config: Config; readonly log: Logger; readonly signal: AbortSignal },
): Promise<void> {
  const { databaseUrl, noticesUrl, databasePreparedStatements, dataDir } = config;
  const apply = () =>
    applyMigrations(connection, {
      folder: migrations,
      sharesSessions: noticesUrl !== null || !databasePreparedStatements,
      signal,
      onProgress: ({ step, migration, seconds }) =>
        log.info({ ...(migration !== null && { migration }), seconds }, migrationTexts[step]),
    });
  if (databaseUrl === null) await withEmbeddedDatabaseErrors(dataDir, apply);
  else await withDatabaseErrors("DATABASE_URL", databaseUrl, apply);
}

function openPool(
  connection: pg.ClientConfig,
  parts: {
    readonly config: Config;
    readonly metrics: ReturnType<typeof createMetrics>;
    readonly tracing: Tracing | null;
    readonly log: Logger;
    readonly closers: Closers;
  },
): Database {
  const { config, metrics, tracing, log, closers } = parts;
  const database = openDatabase(connection, {
    poolSize: config.databasePoolSize,
    preparedStatements: config.databasePreparedStatements,
    onError(error) {
      metrics.storage.connectionLost("pool");
      log.warn({ err: error }, "a database connection was lost");
    },
    observer: {
      batch: (operation) => ({
        ran: metrics.storage.batch(operation),
        spans: tracing ? tracedBatches(tracing, operation) : undefined,
      }),
      statement: tracing ? tracedStatements(tracing) : undefined,
      moved: metrics.verifications.count,
      charged: metrics.calls.charged,
      verified: metrics.verifications.verified,
    },
  });
  closers.add(() => database.close());
  metrics.storage.watchPool(database.pool, config.databasePoolSize);
  metrics.storage.watchBacklog(() => readBacklog(database));
  return database;
}

/** As often as a window polls that has no stream. */
const readWithoutNoticesMs = 3_000;

async function startNotices(
  connection: pg.ClientConfig,
  parts: {
    readonly config: Config;
    readonly database: Database;
    readonly checkDatabase: OpenStorage["checkDatabase"];
    readonly listeners: Omit<NoticeListeners, "onError">;
    readonly metrics: ReturnType<typeof createMetrics>;
    readonly log: Logger;
    readonly closers: Closers;
  },
): Promise<void> {
  const { config, database, checkDatabase, listeners, metrics, log, closers } = parts;
  const { databaseUrl, noticesUrl } = config;
  let reading: NodeJS.Timeout | undefined;
  /** A database that cannot be listened to may answer: its pooler, or its limit of connections, refuses this one alone. */
  const readWithoutNotices = async () => {
    reading = undefined;
    if ((await checkDatabase()) === "usable") listeners.onGap();
  };
  const notices = createNotices(noticesUrl === null ? connection : { connectionString: noticesUrl }, {
    ...listeners,
    onGap() {
      clearTimeout(reading);
      reading = undefined;
      listeners.onGap();
    },
    onError(error) {
      metrics.storage.connectionLost("notices");
      log.warn({ err: error }, "the LISTEN connection was lost");
      reading ??= setTimeout(readWithoutNotices, readWithoutNoticesMs).unref();
    },
  });
  closers.add(() => notices.stop());
  if (databaseUrl === null) await notices.start();
  else if (noticesUrl === null) await withDatabaseErrors("DATABASE_URL", databaseUrl, () => notices.start());
  else {
    const announce = (channel: string, payload: string) =>
      withDatabaseErrors("DATABASE_URL", databaseUrl, () => sendNotice(database, channel, payload));
    await withDatabaseErrors("DATABASE_NOTICES_URL", noticesUrl, async () => {
      await requireNotices({ connectionString: noticesUrl }, announce);
      await notices.start();
    });
  }
}

/** A misspelt `sslmode` leaves connections without TLS, and whoever asks for `channel_binding` expects to have it. */
function warnOfParameters({ databaseUrl, noticesUrl }: Config, log: Logger): void {
  for (const [setting, url] of Object.entries({
    DATABASE_URL: databaseUrl,
    DATABASE_NOTICES_URL: noticesUrl,
  })) {
    const parameters = url === null ? [] : ineffectiveParameters(url);
    if (parameters.length > 0) log.warn({ parameters }, `${setting} has parameters that have no effect`);
  }
}

/** The embedded database is started with the right settings. A failed check does not prevent the start. */
async function warnOfServerLog(database: Database, log: Logger): Promise<void> {
  try {
    const settings = await readLeakingLogSettings(database);
    if (settings === null) return;
    const names = Object.keys(settings).join(" and ");
    log.warn(
      settings,
      `the database logs complete phone numbers and codes because of its ${names}: docs/operations.md, "What Postgres logs"`,
    );
  } catch (error) {
    log.warn({ err: error }, "the database's log settings could not be checked");
  }
}
