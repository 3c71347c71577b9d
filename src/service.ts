/** The wiring: configuration → database → what both roles depend on → the roles (`worker.ts`, `api.ts`) → shutdown. */

import { setTimeout as delay } from "node:timers/promises";
import type { Logger } from "pino";
import type { OpenAdministration, openAdministration } from "./administration.ts";
import { startApi } from "./api.ts";
import { Closers } from "./closers.ts";
import { type Config, hostAndPort } from "./config.ts";
import { serviceActor } from "./core/administration/audit.ts";
import { makeDemoProject } from "./core/demo-project.ts";
import type { Tracing } from "./core/tracing.ts";
import { createTransitionHub } from "./core/transition-hub.ts";
import { deprecations as contractDeprecations, type Deprecation } from "./gateway/deprecations.ts";
import type { LogOutput } from "./log/log-output.ts";
import { openStorage } from "./open-storage.ts";
import { createMetrics } from "./ops/metrics.ts";
import { createOpsServer } from "./ops/ops-server.ts";
import { createReadiness, type Readiness } from "./ops/readiness.ts";
import { withListenErrors } from "./setting-errors.ts";
import { createCreationTraces } from "./storage/creation-traces.ts";
import { hasKeyInEachEnvironment } from "./storage/demo-keys.ts";
import { createDirectory } from "./storage/directory.ts";
import { tracedParts } from "./tracing/traced.ts";
import { version } from "./version.ts";
import { createEndpoints } from "./webhooks/endpoints.ts";
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

/** What a service is given besides its environment. */
export interface StartOptions {
  /** The log's output, which the metrics report on. */
  readonly output?: LogOutput;
  /** Those of the contract by default. */
  readonly deprecations?: readonly Deprecation[];
  /** Ends the start, until the database is reached and migrated. */
  readonly signal?: AbortSignal;
}

/** Starts everything that this process does. If a step fails, what was started before is closed again. */
export async function startService(
  config: Config,
  log: Logger,
  options: StartOptions = {},
): Promise<RunningService> {
  const closers = new Closers();
  try {
    return await start(config, log, closers, options);
  } catch (error) {
    await closers.close(log);
    throw error;
  }
}

async function start(
  config: Config,
  log: Logger,
  closers: Closers,
  { output, deprecations = contractDeprecations, signal = new AbortController().signal }: StartOptions,
): Promise<RunningService> {
  const metrics = createMetrics();
  if (output) metrics.watchLog(output);
  const tracing = config.tracing && (await openTracing(config.tracing, log, closers));
  const storage = await openStorage({ config, metrics, tracing, log, closers, signal });
  const { database } = storage;
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
  await storage.listen({
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
  });
  const endpoints = createEndpoints({
    allowPrivate: config.webhookAllowPrivate,
    traceHeaders: tracing?.headers,
  });
  closers.add(() => endpoints.close());
  const administration = importedOnDemand({ database, directory, endpoints });

  let isStarted = !config.roles.api;
  const stopping = new AbortController();
  const drain = async (signal: AbortSignal) => {
    stopping.abort();
    if (config.roles.api) await delay(config.drainSeconds * 1000, undefined, { signal }).catch(() => {});
  };
  const readiness = createReadiness({
    phase: () => (stopping.signal.aborted ? "stopping" : isStarted ? "serving" : "starting"),
    checkDatabase: () =>
      Promise.race([
        storage.checkDatabase(),
        delay(readinessTimeoutMs, "database_away" as const, { ref: false }),
      ]),
  });
  const addresses = { http: "", grpc: "", ops: await startOps(config, { readiness, metrics, closers }) };
  if (config.roles.worker) {
    const { retention } = config;
    const worker = startWorker({ database, endpoints, metrics, traced, log, retention, closers });
    wakeDeliveries = worker.wakeDeliveries;
  }
  const running = { addresses, drain, close: () => closers.close(log) };
  if (!config.roles.api) {
    log.info({ version, ops: addresses.ops }, runningText);
    return running;
  }

  const faces = await startApi({
    config,
    database,
    directory,
    transitions,
    administration,
    readiness,
    stopping: stopping.signal,
    metrics,
    tracing,
    traced,
    deprecations,
    log,
    closers,
  });
  Object.assign(addresses, faces);
  const keys =
    config.databaseUrl === null && !(await hasKeyInEachEnvironment(database))
      ? await makeDemoProject((await administration()).as(serviceActor))
      : {};
  isStarted = true;
  if (config.databaseUrl === null) printWelcome(config, addresses, keys.test);
  else log.info({ version, ...addresses }, runningText);
  // Loads what the start left out, before a call needs it and before a newer version replaces its files.
  const loading = setTimeout(() => {
    administration().catch((error) =>
      log.warn({ err: error }, "the administration module could not be loaded"),
    );
  }, loadingPauseMs);
  closers.add(async () => {
    clearTimeout(loading);
    stopping.abort();
  });
  return running;
}

async function openTracing(
  settings: NonNullable<Config["tracing"]>,
  log: Logger,
  closers: Closers,
): Promise<Tracing> {
  // Imported only if it is configured: without, nothing of OpenTelemetry is loaded.
  const { openTracing } = await import("./tracing/open-telemetry.ts");
  const tracing = openTracing(settings, {
    onLost: (error) => log.warn({ err: error }, "the trace collector does not accept spans: they are lost"),
    onFound: () => log.info("the trace collector accepts spans again"),
  });
  closers.add(() => tracing.close());
  return tracing;
}

/** With Prisma, it would take a tenth of every start. A failed import, for want of a file handle say, is retried. */
function importedOnDemand(parts: Parameters<typeof openAdministration>[0]) {
  let opened: Promise<OpenAdministration> | undefined;
  return () => {
    opened ??= import("./administration.ts")
      .then(({ openAdministration }) => openAdministration(parts))
      .catch((error: unknown) => {
        opened = undefined;
        throw error;
      });
    return opened;
  };
}

/** Returns the address it listens on. */
async function startOps(
  { opsHost, opsPort }: Config,
  parts: {
    readonly readiness: () => Promise<Readiness>;
    readonly metrics: ReturnType<typeof createMetrics>;
    readonly closers: Closers;
  },
): Promise<string> {
  const ops = createOpsServer({ readiness: parts.readiness, metrics: parts.metrics.registry });
  parts.closers.add(async () => {
    const cut = setTimeout(() => ops.server.closeAllConnections(), opsCloseGraceMs);
    await ops.close();
    clearTimeout(cut);
  });
  await withListenErrors("OPS", opsHost, opsPort, () => ops.listen({ host: opsHost, port: opsPort }));
  const address = ops.server.address();
  return hostAndPort(opsHost, typeof address === "object" && address ? address.port : opsPort);
}

function printWelcome({ dataDir, grpcTls }: Config, addresses: Addresses, testKey: string | undefined): void {
  const grpcSecurity = grpcTls === null ? "plaintext" : grpcTls.ca === null ? "TLS" : "mutual TLS";
  // If standard output fails, on a full disk for example, the text is lost and the service runs on.
  process.stdout.on("error", () => {});
  process.stdout.write(welcome(addresses, { testKey, grpcSecurity, dataDir }));
}

/** Connections to the ops port are cut after this. It closes after the other servers, and gets less time. */
const opsCloseGraceMs = 1_000;
