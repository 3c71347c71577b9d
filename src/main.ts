/** The only wiring: configuration → database → core → servers → jobs → shutdown. */

import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import closeWithGrace from "close-with-grace";
import type pg from "pg";
import type { Logger } from "pino";
import { readOrMakeAdminToken } from "./admin-token.ts";
import type { OpenAdministration } from "./administration.ts";
import { createAdmission } from "./admission/admission.ts";
import { type CountsOf, ownCounts } from "./admission/counts.ts";
import { createRateLimits } from "./admission/rate-limits.ts";
import { createWindowLimits } from "./admission/window-limits.ts";
import { Closers } from "./closers.ts";
import { type Config, parseConfig, SettingError } from "./config.ts";
import type { AdministrationAs } from "./core/administration/administration.ts";
import { serviceActor } from "./core/administration/audit.ts";
import { cancelVerification } from "./core/cancel-verification.ts";
import { createVerification } from "./core/create-verification.ts";
import { makeDemoProject } from "./core/demo-project.ts";
import { getVerification } from "./core/get-verification.ts";
import { encodeId } from "./core/ids.ts";
import { listVerifications } from "./core/list-verifications.ts";
import { getStatistics } from "./core/statistics.ts";
import { takeInboundMessages } from "./core/take-inbound-messages.ts";
import { createTransitionHub } from "./core/transition-hub.ts";
import {
  getVerificationWindow,
  sendTestMessage,
  watchVerificationWindow,
} from "./core/verification-window.ts";
import { watchVerification } from "./core/watch-verification.ts";
import { type Deprecation, deprecations } from "./gateway/deprecations.ts";
import { createGateway } from "./gateway/gateway.ts";
import { logFault } from "./gateway/request-log.ts";
import { writeLastUses } from "./jobs/last-used.ts";
import { createLog } from "./log.ts";
import { stepLogLevel } from "./log-level.ts";
import { type LogOutput, openLogOutput } from "./log-output.ts";
import { createMetrics } from "./ops/metrics.ts";
import { createOpsServer } from "./ops/ops-server.ts";
import { createReadiness } from "./ops/readiness.ts";
import { createRpcServer } from "./rpc/server.ts";
import { createVerificationService } from "./rpc/verification-service.ts";
import { createVerificationWindowService } from "./rpc/verification-window-service.ts";
import { causeOf, listening, oneLine, reach } from "./setting-errors.ts";
import { readBacklog } from "./storage/backlog.ts";
import { createCodeOccupancy } from "./storage/code-occupancy.ts";
import { createCreationTraces } from "./storage/creation-traces.ts";
import { type Database, openDatabase } from "./storage/database.ts";
import { createDirectory } from "./storage/directory.ts";
import { startEmbeddedPostgres } from "./storage/embedded-postgres.ts";
import { createInboundMessages } from "./storage/inbound-messages.ts";
import { createLastUses } from "./storage/last-used.ts";
import { applyMigrations } from "./storage/migrations.ts";
import { createNotices } from "./storage/notices.ts";
import { readLeakingLogSettings } from "./storage/server-log.ts";
import { createStatisticsStore } from "./storage/statistics.ts";
import { createUsageLedger } from "./storage/usage.ts";
import { createVerificationWindows } from "./storage/verification-windows.ts";
import { createVerifications } from "./storage/verifications.ts";
import { tracedParts } from "./tracing/traced.ts";
import { tracedBatches, tracedStatements } from "./tracing/traced-storage.ts";
import { createEndpoints } from "./webhooks/delivery.ts";
import { type Addresses, welcome } from "./welcome.ts";
import { loadAssets } from "./window/assets.ts";
import { verificationWindow } from "./window/window.ts";
import { startWorker } from "./worker.ts";

export interface RunningService {
  readonly addresses: Addresses;
  /**
   * Says that it is stopping wherever it is asked, and goes on answering for DRAIN_SECONDS, or until `signal` aborts:
   * those who send calls here need a moment to hear of it. To be called before `close`.
   */
  drain(signal: AbortSignal): Promise<void>;
  close(): Promise<void>;
}

/** A database that takes longer to say a word is not there for callers either. */
const readinessPatienceMs = 2_000;

/** After it is ready, which is for those who wait for that. */
const loadingPauseMs = 1_000;

const migrations = path.join(import.meta.dirname, "../prisma/migrations");

/** What of a service does not come from its environment. */
export interface Fixtures {
  readonly deprecations: readonly Deprecation[];
}

/**
 * Starts everything this process is to do. What was begun is ended again where a later step fails. `output` is the
 * log's, for the metrics.
 */
export async function startService(
  config: Config,
  log: Logger,
  output?: LogOutput,
  fixtures: Fixtures = { deprecations },
): Promise<RunningService> {
  const closers = new Closers();
  try {
    return await start(config, log, output, closers, fixtures);
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
): Promise<RunningService> {
  const connection = await connectionOf(config, closers);
  await reach("DATABASE_URL", config.databaseUrl, () => applyMigrations(connection, { folder: migrations }));

  const metrics = createMetrics();
  const tracing = config.tracing && (await import("./tracing/open-telemetry.ts")).openTracing(config.tracing);
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
        onError: (error) =>
          log.warn({ err: error }, "under which span something was created could not be kept"),
      }),
    );

  const directory = createDirectory(database);
  const transitions = createTransitionHub();
  let wakeDeliveries = () => {};
  const { noticesUrl } = config;
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
      log.warn({ err: error }, "the connection for notices was lost");
    },
  });
  if (noticesUrl === null) await notices.start();
  else await reach("DATABASE_NOTICES_URL", noticesUrl, notices.start);
  closers.add(() => notices.stop());

  const endpoints = createEndpoints({
    allowPrivate: config.webhookAllowPrivate,
    traceHeaders: tracing?.headers,
  });
  closers.add(() => endpoints.close());

  // With Prisma it would be a tenth of every start. What could not be loaded, for want of a file handle say, is tried again.
  let opened: Promise<OpenAdministration> | undefined;
  const administration = () => {
    opened ??= import("./administration.ts").then(({ openAdministration }) =>
      openAdministration({ database, directory, endpoints }),
    );
    opened.catch(() => {
      opened = undefined;
    });
    return opened;
  };
  const administrationAs: AdministrationAs = async (actor) => (await administration()).as(actor);

  let serving = !config.roles.api;
  let stopping = false;
  const isStopping = () => stopping;
  const drain = async (signal: AbortSignal) => {
    stopping = true;
    if (config.roles.api) await delay(config.drainSeconds * 1000, undefined, { signal }).catch(() => {});
  };
  const readiness = createReadiness({
    phase: () => (stopping ? "stopping" : serving ? "serving" : "starting"),
    reachesDatabase: () =>
      Promise.race([
        database.query({ text: "SELECT 1", rowMode: "array" }).then(
          () => true,
          () => false,
        ),
        delay(readinessPatienceMs, false, { ref: false }),
      ]),
  });
  const ops = createOpsServer({ readiness, metrics: metrics.registry });
  closers.add(async () => {
    const cut = setTimeout(() => ops.server.closeAllConnections(), opsCloseGraceMs);
    await ops.close();
    clearTimeout(cut);
  });
  await listening("OPS", config.opsHost, config.opsPort, () =>
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
  if (!config.roles.api) return { addresses, drain, close: () => closers.close(log) };

  const lastUses = createLastUses(database);
  const writingLastUses = writeLastUses({
    write: lastUses.write,
    onError: (error) => log.warn({ err: error }, "when keys were last used could not be written down"),
  });
  writingLastUses.start();
  closers.add(() => writingLastUses.stop());
  const countsOf = await countsFor(config, log, closers);
  const usage = createUsageLedger(database);
  const verifications = createVerifications(database);
  const admission = createAdmission({
    directory,
    rateLimits: createRateLimits(countsOf),
    chargeUsage: usage.charge,
    isOverloaded: verifications.isOverloaded,
    noteUse: lastUses.note,
    adminTokens: await adminTokensOf(config, log),
  });
  const occupancy = createCodeOccupancy(database);
  await occupancy.refresh();
  occupancy.start((error) => log.warn({ err: error }, "the codes in use could not be counted"));
  closers.add(async () => occupancy.stop());

  const publicBase = { url: config.publicBaseUrl ?? `http://localhost:${config.httpPort}` };
  const useCases = {
    createVerification: createVerification({
      verifications,
      directory,
      occupancy,
      publicBase,
      onCreated: (environment) => metrics.verifications.count("created", environment, 1),
      onUnplaced: metrics.verifications.unplaced,
    }),
    getVerification: getVerification({ verifications }),
    cancelVerification: cancelVerification({ verifications }),
    listVerifications: listVerifications({ verifications, chargeUsage: usage.charge }),
    watchVerification: watchVerification({ verifications, transitions }),
  };
  const service = createVerificationService(traced ? traced.useCases(useCases) : useCases);
  const judgeMessage = createInboundMessages(database, {
    onFault(error) {
      metrics.verifications.inboundFault();
      log.error({ err: error }, "an inbound message could not be judged");
    },
  });
  const takeMessages = takeInboundMessages({
    directory,
    onReceipt({ outcome, verificationId, duplicate }, carrier, seconds) {
      metrics.verifications.receipt(outcome, carrier, duplicate, seconds);
      if (log.isLevelEnabled("debug")) {
        log.debug(
          { verificationId: verificationId && encodeId("vrf_", verificationId), outcome, carrier, duplicate },
          "inbound message",
        );
      }
    },
    writeDown: async (actor, act) => (await administration()).writeDown(actor, act),
    judgeMessage: traced ? traced.judgement(judgeMessage) : judgeMessage,
  });

  const rpc = createRpcServer({
    verifications: service,
    takeMessages,
    getStatistics: getStatistics({
      statistics: createStatisticsStore(database),
      directory,
      chargeUsage: usage.charge,
    }),
    administrationAs,
    admission,
    isReady: async () => (await readiness()) === "ready",
    log,
    tracing: tracing ?? undefined,
    observer: { begun: metrics.calls.rpcBegun, answered: metrics.calls.rpcAnswered },
    tls: config.grpcTls,
    trustedProxies: config.trustedProxies,
  });
  const getWindow = getVerificationWindow({ windows: createVerificationWindows(database), verifications });
  const windows = createVerificationWindowService({
    getVerificationWindow: getWindow,
    watchVerificationWindow: watchVerificationWindow({ getWindow, transitions }),
    sendTestMessage: sendTestMessage({ getWindow, takeMessages }),
  });
  const gateway = createGateway({
    verifications: service,
    admission,
    log,
    trustedProxies: config.trustedProxies,
    isStopping,
    publicBase,
    onAnswered: metrics.calls.answered,
    tracing: tracing ?? undefined,
    deprecations,
  });
  gateway.register(
    verificationWindow({
      windows,
      limits: createWindowLimits(countsOf),
      publicBase,
      onFault: (request, failure) => logFault(log, request, failure),
      streams: { opened: metrics.verifications.windowOpened, closed: metrics.verifications.windowClosed },
    }),
    { prefix: "/v" },
  );
  closers.add(async () => {
    // So that whoever waits for a database that is silent is told so before the cut.
    const ending = setTimeout(() => database.endIfSilentFor(silenceMs), silenceMs);
    const cut = setTimeout(() => gateway.server.closeAllConnections(), closeGraceMs);
    await Promise.all([gateway.close(), rpc.close()]);
    clearTimeout(cut);
    clearTimeout(ending);
  });
  addresses.grpc = await listening("GRPC", config.grpcHost, config.grpcPort, () =>
    rpc.listen(config.grpcHost, config.grpcPort),
  );
  await listening("", config.httpHost, config.httpPort, () =>
    gateway.listen({ host: config.httpHost, port: config.httpPort }),
  );
  const httpAddress = gateway.server.address();
  const httpPort = typeof httpAddress === "object" && httpAddress ? httpAddress.port : config.httpPort;
  addresses.http = `http://localhost:${httpPort}`;
  publicBase.url = config.publicBaseUrl ?? addresses.http;

  const keys = config.databaseUrl === null ? await makeDemoProject(await administrationAs(serviceActor)) : {};
  serving = true;
  if (config.databaseUrl === null) {
    const defaults = { grpc: "127.0.0.1:50051", dataDir: ".data" };
    const { dataDir, grpcTls } = config;
    const grpcSecurity = grpcTls === null ? "plaintext" : grpcTls.ca === null ? "TLS" : "mutual TLS";
    // On a disk that is full, say, it cannot be shown; everything else goes on.
    process.stdout.on("error", () => {});
    process.stdout.write(welcome(addresses, { testKey: keys.test, grpcSecurity, dataDir, defaults }));
  } else {
    log.info(addresses, "phoneproof is running");
  }
  // What a start did without, before somebody needs it, and before a newer version lies in its place.
  const loading = setTimeout(() => {
    loadAssets();
    administration().catch((error) => log.warn({ err: error }, "what administers could not be loaded"));
  }, loadingPauseMs);
  closers.add(async () => {
    clearTimeout(loading);
    serving = false;
  });
  return { addresses, drain, close: () => closers.close(log) };
}

async function connectionOf(config: Config, closers: Closers): Promise<pg.ClientConfig> {
  if (config.databaseUrl !== null) return { connectionString: config.databaseUrl };
  const postgres = await startEmbeddedPostgres({ dataDir: config.dataDir }).catch((error: Error) => {
    throw new SettingError(oneLine(error.message));
  });
  closers.add(() => postgres.stop());
  void postgres.exited.then(() => {
    // Ends the process as any unexpected error does: cleanly, and not with 0.
    setImmediate(() => {
      throw new Error("the embedded Postgres has died and does not start again");
    });
  });
  return postgres.connection;
}

async function countsFor(config: Config, log: Logger, closers: Closers): Promise<CountsOf> {
  if (config.redisUrl === null) return ownCounts;
  // Its client is only loaded where it is wanted: it would be a tenth of every start.
  const { shareCounts } = await import("./admission/shared-counts.ts");
  const shared = await shareCounts(config.redisUrl, {
    onLost: (error) => log.warn({ err: error }, "Redis is away: this process limits rates by itself"),
    onFound: () => log.info("Redis is back: rate limits are shared again"),
  });
  closers.add(async () => shared.close());
  return shared.countsOf;
}

/** The embedded one is started with the right settings. That nobody could look is no reason not to start. */
async function warnOfServerLog(database: Database, log: Logger): Promise<void> {
  try {
    const settings = await readLeakingLogSettings(database);
    if (settings === null) return;
    const names = Object.keys(settings).join(" and ");
    log.warn(
      settings,
      `the database writes whole phones and codes into its log, by its ${names}: docs/operations.md, "What Postgres logs"`,
    );
  } catch (error) {
    log.warn({ err: error }, "what the database writes into its log could not be seen");
  }
}

/** Of base64, 128 random bits and a few more. */
const soundTokenLength = 24;

async function adminTokensOf(config: Config, log: Logger): Promise<string[]> {
  const tokens = config.adminToken === null ? [] : [config.adminToken];
  if (config.databaseUrl !== null && config.adminToken === null) {
    log.warn("PHONEPROOF_ADMIN_TOKEN is not set: only service tokens of scope admin can administer");
  }
  if (config.adminToken !== null && config.adminToken.length < soundTokenLength) {
    log.warn(
      `PHONEPROOF_ADMIN_TOKEN has fewer than ${soundTokenLength} characters and may be guessed: make one by openssl rand -base64 32`,
    );
  }
  if (config.databaseUrl === null) tokens.push(await readOrMakeAdminToken(config.dataDir));
  return tokens;
}

function addressOf(host: string, address: ReturnType<import("node:net").Server["address"]>): string {
  return typeof address === "object" && address ? `${host}:${address.port}` : host;
}

/** What is left of merchants' calls after this long is cut, and of what a database has not answered before. */
const closeGraceMs = 5_000;
const silenceMs = 2_000;
/** Of what is asked at the ops port: after all else, and for less. */
const opsCloseGraceMs = 1_000;

/**
 * How long a clean end may take before it is forced: the outer surface promises 15 s, with the three in which a process
 * with others beside it still answers.
 */
export const closeTimeoutMs = { alone: 14_000, amongOthers: 11_000 };

const signals = ["SIGINT", "SIGTERM", "SIGHUP"] as const;

/** As a program: until a signal ends it. */
export async function main(): Promise<void> {
  let log: Logger;
  let output: LogOutput;
  let config: Config;
  try {
    config = parseConfig(process.env);
    output = openLogOutput();
    log = createLog(config.logLevel, output);
  } catch (error) {
    return fail(error);
  }
  process.on("SIGUSR2", () => stepLogLevel(log, config.logLevel));
  let service: Promise<RunningService> | undefined;
  let running: RunningService | undefined;
  const grace = closeWithGrace(
    {
      delay: config.databaseUrl === null ? closeTimeoutMs.alone : closeTimeoutMs.amongOthers,
      logger: false,
      skip: [...signals, "SIGUSR2"],
    },
    async ({ err }) => {
      if (err) log.fatal({ err }, "the process ends because of an unexpected error");
      await (await service?.catch(() => undefined))?.close();
      log.flush();
      await output.end();
    },
  );
  // A terminal's Ctrl-C reaches the process twice, once by way of npm, and an impatient person sends it again:
  // the second must not end the process before its Postgres.
  let closing = false;
  const impatience = new AbortController();
  for (const signal of signals) {
    process.on(signal, async () => {
      // A person waits for nobody; SIGTERM is what those send who send calls elsewhere first.
      if (signal !== "SIGTERM") impatience.abort();
      if (closing) return;
      closing = true;
      await running?.drain(impatience.signal);
      await grace.close();
    });
  }
  service = startService(config, log, output);
  running = await service.catch(fail);
}

/** One line without a stack for what the person who started it can mend. */
function fail(error: unknown): never {
  const text = error instanceof SettingError ? error.message : oneLine(causeOf(error).message);
  process.stderr.write(`phoneproof cannot start: ${text}\n`);
  process.exit(1);
}
