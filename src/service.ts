/** The wiring: configuration → database → what both roles depend on → the roles (`worker.ts`, `api.ts`) → shutdown. */

import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import type pg from "pg";
import type { Logger } from "pino";
import type { OpenAdministration } from "./administration.ts";
import { startApi } from "./api.ts";
import { Closers } from "./closers.ts";
import { type Config, SettingError } from "./config.ts";
import { serviceActor } from "./core/administration/audit.ts";
import { makeDemoProject } from "./core/demo-project.ts";
import { createTransitionHub } from "./core/transition-hub.ts";
import { type Deprecation, deprecations } from "./gateway/deprecations.ts";
import type { LogOutput } from "./log-output.ts";
import { createMetrics } from "./ops/metrics.ts";
import { createOpsServer } from "./ops/ops-server.ts";
import { createReadiness } from "./ops/readiness.ts";
import {
  oneLine,
  withDatabaseErrors,
  withEmbeddedDatabaseErrors,
  withListenErrors,
} from "./setting-errors.ts";
import { readBacklog } from "./storage/backlog.ts";
import { createCreationTraces } from "./storage/creation-traces.ts";
import { type Database, openDatabase } from "./storage/database.ts";
import { createDirectory } from "./storage/directory.ts";
import { startEmbeddedPostgres } from "./storage/embedded-postgres.ts";
import { applyMigrations, createSchemaCheck } from "./storage/migrations.ts";
import { createNotices, requireNotices } from "./storage/notices.ts";
import { readLeakingLogSettings } from "./storage/server-log.ts";
import { tracedParts } from "./tracing/traced.ts";
import { tracedBatches, tracedStatements } from "./tracing/traced-storage.ts";
import { createEndpoints } from "./webhooks/delivery.ts";
import { type Addresses, welcome } from "./welcome.ts";
import { startWorker } from "./worker.ts";

export interface RunningService {
  readonly addresses: Addresses;
  /**
   * Reports that it is stopping wherever it is asked, and keeps answering for DRAIN_SECONDS, or until `signal` aborts:
   * load balancers need a moment to notice. Call it before `close`.
   */
  drain(signal: AbortSignal): Promise<void>;
  close(): Promise<void>;
}

/** A database that takes longer to answer counts as unreachable: it is no use to callers either. */
const readinessTimeoutMs = 2_000;

/** Logged by a process that prints no welcome text. */
const runningText = "phoneproof is running";

/** Starts after the service is ready, so that clients who waited for that are served first. */
const loadingPauseMs = 1_000;

const migrations = path.join(import.meta.dirname, "../prisma/migrations");

/** Inputs of a service that do not come from its environment. */
export interface Fixtures {
  readonly deprecations: readonly Deprecation[];
}

/**
 * Starts everything that this process does. If a step fails, what was started before is closed again. `output` is the
 * log's output, which the metrics report on. `signal` can end the start until the database is reached and migrated.
 */
export async function startService(
  config: Config,
  log: Logger,
  output?: LogOutput,
  fixtures: Fixtures = { deprecations },
  signal: AbortSignal = new AbortController().signal,
): Promise<RunningService> {
  const closers = new Closers();
  try {
    return await start(config, log, output, closers, fixtures, signal);
  } catch (error) {
    await closers.close(log);
    throw error;
  }
}

async function start(
  config: Config,
  log: Logger,
  output: LogOutput | undefined,
  closers: Closers,
  { deprecations }: Fixtures,
  signal: AbortSignal,
): Promise<RunningService> {
  const connection = await connectionOf(config, closers, signal);
  const { databaseUrl, noticesUrl } = config;
  const migrate = () =>
    applyMigrations(connection, {
      folder: migrations,
      sharesSessions: noticesUrl !== null || !config.databasePreparedStatements,
      signal,
    });
  if (databaseUrl === null) await withEmbeddedDatabaseErrors(config.dataDir, migrate);
  else await withDatabaseErrors("DATABASE_URL", databaseUrl, migrate);

  const isUsable = await createSchemaCheck(migrations);

  const metrics = createMetrics();
  const tracing =
    config.tracing &&
    (await import("./tracing/open-telemetry.ts")).openTracing(config.tracing, {
      onLost: (error) => log.warn({ err: error }, "the trace collector does not accept spans: they are lost"),
      onFound: () => log.info("the trace collector accepts spans again"),
    });
  if (tracing) closers.add(() => tracing.close());
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
      verified: metrics.verifications.verified,
    },
  });
  if (output) metrics.watchLog(output);
  metrics.storage.watchPool(database.pool, config.databasePoolSize);
  metrics.storage.watchBacklog(() => readBacklog(database));
  closers.add(() => database.close());
  if (config.databaseUrl !== null) await warnOfServerLog(database, log);

  const traced =
    tracing &&
    tracedParts(
      tracing,
      createCreationTraces(database, {
        onError: (error) => log.warn({ err: error }, "the trace context of a creation could not be stored"),
      }),
    );

  const directory = createDirectory(database);
  const transitions = createTransitionHub();
  let wakeDeliveries = () => {};
  const notices = createNotices(noticesUrl === null ? connection : { connectionString: noticesUrl }, {
    onTransition: ({ verificationId, deliveryDue }) => {
      transitions.announce(verificationId);
      if (deliveryDue) wakeDeliveries();
    },
    onHint: (verificationId) => transitions.announce(verificationId),
    onDirectoryChange: () => directory.forget(),
    onGap: () => {
      directory.forget();
      transitions.announceGap();
      wakeDeliveries();
    },
    onError(error) {
      metrics.storage.connectionLost("notices");
      log.warn({ err: error }, "the LISTEN connection was lost");
    },
  });
  closers.add(() => notices.stop());
  if (databaseUrl === null) await notices.start();
  else if (noticesUrl === null) await withDatabaseErrors("DATABASE_URL", databaseUrl, () => notices.start());
  else {
    const announce = (channel: string, payload: string) =>
      withDatabaseErrors("DATABASE_URL", databaseUrl, () =>
        database.query({ text: "SELECT pg_notify($1, $2)", values: [channel, payload], rowMode: "array" }),
      );
    await withDatabaseErrors("DATABASE_NOTICES_URL", noticesUrl, async () => {
      await requireNotices({ connectionString: noticesUrl }, announce);
      await notices.start();
    });
  }

  const endpoints = createEndpoints({
    allowPrivate: config.webhookAllowPrivate,
    traceHeaders: tracing?.headers,
  });
  closers.add(() => endpoints.close());

  // Imported on demand: with Prisma, it would take a tenth of every start. A failed import, for want of a file handle
  // say, is retried.
  let opened: Promise<OpenAdministration> | undefined;
  const administration = () => {
    opened ??= import("./administration.ts")
      .then(({ openAdministration }) => openAdministration({ database, directory, endpoints }))
      .catch((error: unknown) => {
        opened = undefined;
        throw error;
      });
    return opened;
  };

  let serving = !config.roles.api;
  let stopping = false;
  const drain = async (signal: AbortSignal) => {
    stopping = true;
    if (config.roles.api) await delay(config.drainSeconds * 1000, undefined, { signal }).catch(() => {});
  };
  const readiness = createReadiness({
    phase: () => (stopping ? "stopping" : serving ? "serving" : "starting"),
    reachesDatabase: () =>
      Promise.race([isUsable(database).catch(() => false), delay(readinessTimeoutMs, false, { ref: false })]),
  });
  const ops = createOpsServer({ readiness, metrics: metrics.registry });
  closers.add(async () => {
    const cut = setTimeout(() => ops.server.closeAllConnections(), opsCloseGraceMs);
    await ops.close();
    clearTimeout(cut);
  });
  await withListenErrors("OPS", config.opsHost, config.opsPort, () =>
    ops.listen({ host: config.opsHost, port: config.opsPort }),
  );
  const addresses = { http: "", grpc: "", ops: addressOf(config.opsHost, ops.server.address()) };
  if (config.roles.worker) {
    const worker = startWorker({
      database,
      endpoints,
      metrics,
      traced,
      log,
      retention: config.retention,
      closers,
    });
    wakeDeliveries = worker.wakeDeliveries;
  }
  const running = { addresses, drain, close: () => closers.close(log) };
  if (!config.roles.api) {
    log.info({ ops: addresses.ops }, runningText);
    return running;
  }

  const faces = await startApi({
    config,
    database,
    directory,
    transitions,
    administration,
    readiness,
    isStopping: () => stopping,
    metrics,
    tracing,
    traced,
    deprecations,
    log,
    closers,
  });
  Object.assign(addresses, faces);
  const keys =
    config.databaseUrl === null ? await makeDemoProject((await administration()).as(serviceActor)) : {};
  serving = true;
  if (config.databaseUrl === null) {
    const { dataDir, grpcTls } = config;
    const grpcSecurity = grpcTls === null ? "plaintext" : grpcTls.ca === null ? "TLS" : "mutual TLS";
    // If standard output fails, on a full disk for example, the text is lost and the service runs on.
    process.stdout.on("error", () => {});
    process.stdout.write(welcome(addresses, { testKey: keys.test, grpcSecurity, dataDir }));
  } else {
    log.info(addresses, runningText);
  }
  // Loads what the start left out, before a call needs it and before a newer version replaces its files.
  const loading = setTimeout(() => {
    administration().catch((error) =>
      log.warn({ err: error }, "the administration module could not be loaded"),
    );
  }, loadingPauseMs);
  closers.add(async () => {
    clearTimeout(loading);
    serving = false;
  });
  return running;
}

async function connectionOf(config: Config, closers: Closers, signal: AbortSignal): Promise<pg.ClientConfig> {
  if (config.databaseUrl !== null) return { connectionString: config.databaseUrl };
  const postgres = await startEmbeddedPostgres({ dataDir: config.dataDir, signal }).catch((error: Error) => {
    throw new SettingError(oneLine(error.message));
  });
  closers.add(() => postgres.stop());
  void postgres.exited.then((reason) => {
    // Ends the process like any uncaught error: cleanly, with a non-zero exit code.
    setImmediate(() => {
      throw new Error(`the embedded Postgres died and does not restart: ${reason}`);
    });
  });
  return postgres.connection;
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

function addressOf(host: string, address: ReturnType<import("node:net").Server["address"]>): string {
  return typeof address === "object" && address ? `${host}:${address.port}` : host;
}

/** Connections to the ops port are cut after this. It closes after the other servers, and gets less time. */
const opsCloseGraceMs = 1_000;
