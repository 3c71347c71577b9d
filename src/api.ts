/** What a process with the role api runs: the HTTP and gRPC servers, and what they depend on. */

import type { Logger } from "pino";
import { readOrMakeAdminToken } from "./admin-token.ts";
import type { OpenAdministration } from "./administration.ts";
import { createAdmission } from "./admission/admission.ts";
import { type CountsOf, ownCounts } from "./admission/counts.ts";
import { createRateLimits } from "./admission/rate-limits.ts";
import { createWindowLimits } from "./admission/window-limits.ts";
import type { Closers } from "./closers.ts";
import { type Config, hostAndPort } from "./config.ts";
import type { AdministrationAs } from "./core/administration/administration.ts";
import { cancelVerification } from "./core/cancel-verification.ts";
import { createVerification } from "./core/create-verification.ts";
import { getVerification } from "./core/get-verification.ts";
import { encodeId } from "./core/ids.ts";
import { listVerifications } from "./core/list-verifications.ts";
import { getStatistics } from "./core/statistics.ts";
import { takeInboundMessages } from "./core/take-inbound-messages.ts";
import type { Tracing } from "./core/tracing.ts";
import type { TransitionHub } from "./core/transition-hub.ts";
import type { VerificationUseCases } from "./core/verification-use-cases.ts";
import {
  getVerificationWindow,
  sendTestMessage,
  watchVerificationWindow,
} from "./core/verification-window.ts";
import { watchVerification } from "./core/watch-verification.ts";
import { createConnectionTurns } from "./gateway/connection-turns.ts";
import type { Deprecation } from "./gateway/deprecations.ts";
import { createGateway } from "./gateway/gateway.ts";
import { noteFaults } from "./gateway/request-log.ts";
import { renewCertificate } from "./grpc-certificate.ts";
import { writeLastUses } from "./jobs/last-used.ts";
import type { createMetrics } from "./ops/metrics.ts";
import type { Readiness } from "./ops/readiness.ts";
import { createRpcServer, type RpcServer } from "./rpc/server.ts";
import { createVerificationService } from "./rpc/verification-service.ts";
import { createVerificationWindowService } from "./rpc/verification-window-service.ts";
import { afterRunning } from "./running-time.ts";
import { withListenErrors } from "./setting-errors.ts";
import { createCodeOccupancy } from "./storage/code-occupancy.ts";
import type { Database } from "./storage/database.ts";
import { createDatabaseClock } from "./storage/database-clock.ts";
import type { CachedDirectory } from "./storage/directory.ts";
import { createInboundMessages } from "./storage/inbound-messages.ts";
import { createLastUses } from "./storage/last-used.ts";
import { createStatisticsStore } from "./storage/statistics.ts";
import { createUsageLedger } from "./storage/usage.ts";
import { createVerificationWindows } from "./storage/verification-windows.ts";
import { createVerifications } from "./storage/verifications.ts";
import { readGrpcTls } from "./tls-files.ts";
import type { tracedParts } from "./tracing/traced.ts";
import { verificationWindow } from "./window/window.ts";

export interface ApiAddresses {
  /** A URL, as merchants write it. */
  readonly http: string;
  /** `host:port` */
  readonly grpc: string;
}

interface ApiParts {
  readonly config: Config;
  readonly database: Database;
  readonly directory: CachedDirectory;
  readonly transitions: TransitionHub;
  readonly administration: () => Promise<OpenAdministration>;
  readonly readiness: () => Promise<Readiness>;
  /** Aborted once connections are to close after their next response. */
  readonly stopping: AbortSignal;
  readonly metrics: ReturnType<typeof createMetrics>;
  /** Null: nothing is traced. */
  readonly tracing: Tracing | null;
  readonly traced: ReturnType<typeof tracedParts> | null;
  readonly deprecations: readonly Deprecation[];
  readonly log: Logger;
  readonly closers: Closers;
}

/** Starts listening and returns the addresses. `closers` stops everything that was started here. */
export async function startApi(parts: ApiParts): Promise<ApiAddresses> {
  const { config, database, directory, transitions, administration, readiness, stopping } = parts;
  const { metrics, tracing, deprecations, log, closers } = parts;
  const administrationAs: AdministrationAs = async (actor) => (await administration()).as(actor);

  const lastUses = createLastUses(database);
  const writingLastUses = writeLastUses({
    write: lastUses.write,
    onError: (error) => log.warn({ err: error }, "the last-used times of keys could not be stored"),
  });
  writingLastUses.start();
  closers.add(() => writingLastUses.stop());
  const countsOf = await countsFor(config, metrics, log, closers);
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
  const publicBase = { url: config.publicBaseUrl ?? `http://localhost:${config.httpPort}` };
  const useCases = await startUseCases(parts, { verifications, chargeUsage: usage.charge, publicBase });
  const service = createVerificationService(useCases);
  const takeMessages = takeMessagesWith(parts);

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
    observer: {
      begun: metrics.calls.rpcBegun,
      answered: metrics.calls.rpcAnswered,
      refusedLate: (code) => metrics.calls.refusedLate("grpc", code),
      streamRefused: metrics.calls.rpcStreamRefused,
      connectionRefused: metrics.calls.rpcConnectionRefused,
    },
    tls: config.grpcTls,
    trustedProxies: config.trustedProxies,
  });
  const getWindow = getVerificationWindow({ windows: createVerificationWindows(database), verifications });
  const windows = createVerificationWindowService({
    getVerificationWindow: getWindow,
    watchVerificationWindow: watchVerificationWindow({ getWindow, transitions }),
    sendTestMessage: sendTestMessage({ getWindow, takeMessages }),
  });
  const onFault = noteFaults(log, (code) => metrics.calls.refusedLate("http", code));
  const turns = createConnectionTurns();
  metrics.calls.watchTurns(turns);
  const gateway = createGateway({
    verifications: service,
    admission,
    log,
    trustedProxies: config.trustedProxies,
    stopping,
    publicBase,
    turns,
    onAnswered: metrics.calls.answered,
    onFault,
    tracing: tracing ?? undefined,
    deprecations,
  });
  gateway.instance.register(
    verificationWindow({
      windows,
      limits: createWindowLimits(countsOf),
      publicBase,
      onFault,
      streams: { opened: metrics.verifications.windowOpened, closed: metrics.verifications.windowClosed },
    }),
    { prefix: "/v" },
  );
  closers.add(async () => {
    // Calls that wait for an unresponsive database then still get an error response before the connections are cut.
    const ending = afterRunning(silenceMs, () => database.endIfSilentFor(silenceMs));
    const cut = afterRunning(closeGraceMs, () => gateway.instance.server.closeAllConnections());
    try {
      await Promise.all([gateway.instance.close(), rpc.close()]);
    } finally {
      cut.cancel();
      ending.cancel();
    }
  });
  return listen(parts, { rpc, gateway, publicBase });
}

/** What can be done with verifications, and the counting of codes that creations depend on. */
async function startUseCases(
  { database, directory, transitions, metrics, traced, log, closers }: ApiParts,
  by: {
    readonly verifications: ReturnType<typeof createVerifications>;
    readonly chargeUsage: ReturnType<typeof createUsageLedger>["charge"];
    readonly publicBase: { readonly url: string };
  },
): Promise<VerificationUseCases> {
  const { verifications, chargeUsage, publicBase } = by;
  const occupancy = createCodeOccupancy(database);
  await occupancy.refresh();
  occupancy.start((error) => log.warn({ err: error }, "the codes in use could not be counted"));
  closers.add(async () => occupancy.stop());
  const useCases = {
    createVerification: createVerification({
      verifications,
      directory,
      occupancy,
      clock: createDatabaseClock(database),
      publicBase,
      onCreated: metrics.verifications.created,
      onUnplaced: metrics.verifications.unplaced,
    }),
    getVerification: getVerification({ verifications }),
    cancelVerification: cancelVerification({ verifications }),
    listVerifications: listVerifications({ verifications, directory, chargeUsage }),
    watchVerification: watchVerification({ verifications, transitions }),
  };
  return traced ? traced.useCases(useCases) : useCases;
}

function takeMessagesWith({ database, directory, administration, metrics, traced, log }: ApiParts) {
  const judgeMessage = createInboundMessages(database, {
    onFault(error) {
      metrics.verifications.inboundFault();
      log.error({ err: error }, "an inbound message could not be processed");
    },
  });
  return takeInboundMessages({
    directory,
    onReceipt({ outcome, verificationId, duplicate }, { carrier, environment }, seconds) {
      metrics.verifications.receipt({ outcome, duplicate, carrier, environment }, seconds);
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
}

/** Opens both ports. From then on `publicBase` has the address that is in use. */
async function listen(
  { config, metrics, log, closers }: ApiParts,
  servers: {
    readonly rpc: RpcServer;
    readonly gateway: ReturnType<typeof createGateway>;
    readonly publicBase: { url: string };
  },
): Promise<ApiAddresses> {
  const { rpc, gateway, publicBase } = servers;
  const grpcPort = await withListenErrors("GRPC", config.grpcHost, config.grpcPort, () =>
    rpc.listen(config.grpcHost, config.grpcPort),
  );
  if (config.grpcTls !== null) {
    const { files } = config.grpcTls;
    const renewing = renewCertificate({
      first: config.grpcTls,
      read: () => readGrpcTls(files),
      take: rpc.renew,
      onExpiry: metrics.certificateExpires,
      log,
    });
    closers.startJob(renewing);
  }
  const { address, port: httpPort } = await withListenErrors("", config.httpHost, config.httpPort, () =>
    gateway.listen(config.httpHost, config.httpPort),
  );
  const local = `http://localhost:${httpPort}`;
  publicBase.url = config.publicBaseUrl ?? local;
  const http = answersLocalhost.has(address.replace(/^::ffff:/, ""))
    ? local
    : `http://${hostAndPort(config.httpHost, httpPort)}`;
  if (config.publicBaseUrl === null && http !== local) {
    log.warn(
      `with HOST=${config.httpHost}, nothing answers at ${local}, with which each verification_url begins: set PUBLIC_BASE_URL, such as to ${http}`,
    );
  }
  return { http, grpc: hostAndPort(config.grpcHost, grpcPort) };
}

const answersLocalhost: ReadonlySet<string> = new Set(["127.0.0.1", "::1", "0.0.0.0", "::"]);

async function countsFor(
  config: Config,
  metrics: ReturnType<typeof createMetrics>,
  log: Logger,
  closers: Closers,
): Promise<CountsOf> {
  if (config.redisUrl === null) return ownCounts;
  // The Redis client is imported only if it is configured: it would take a tenth of every start.
  const { shareCounts } = await import("./admission/shared-counts.ts");
  const shared = await shareCounts(config.redisUrl, {
    onLost(error) {
      metrics.redisLost(true);
      log.warn({ err: error }, "Redis is unavailable: this process enforces rate limits on its own");
    },
    onFound() {
      metrics.redisLost(false);
      log.info("Redis is back: rate limits are shared again");
    },
  });
  closers.add(async () => shared.close());
  return shared.countsOf;
}

/** Base64 characters, which carry a few more than 128 random bits. */
const soundTokenLength = 24;

async function adminTokensOf(config: Config, log: Logger): Promise<string[]> {
  const tokens = config.adminToken === null ? [] : [config.adminToken];
  if (config.databaseUrl !== null && config.adminToken === null) {
    log.warn("PHONEPROOF_ADMIN_TOKEN is not set: only service tokens of scope admin can administer");
  }
  const short = `has fewer than ${soundTokenLength} characters and can be guessed`;
  if (config.adminToken !== null && config.adminToken.length < soundTokenLength) {
    log.warn(`PHONEPROOF_ADMIN_TOKEN ${short}: create one with openssl rand -base64 32`);
  }
  if (config.databaseUrl === null) {
    const token = await readOrMakeAdminToken(config.dataDir);
    if (token.length < soundTokenLength) {
      log.warn(
        `the token in DATA_DIR/admin-token ${short}: delete the file, and the next start creates another`,
      );
    }
    tokens.push(token);
  }
  return tokens;
}

/** Merchants' connections are cut after `closeGraceMs`; database queries without an answer for `silenceMs` fail before that. */
const closeGraceMs = 5_000;
const silenceMs = 2_000;
