import http2 from "node:http2";
import type { SecureContextOptions, Server as TlsServer } from "node:tls";
import { createContextValues } from "@connectrpc/connect";
import { fastifyConnectPlugin } from "@connectrpc/connect-fastify";
import fastify, {
  type FastifyInstance,
  type FastifyReply,
  type FastifyRequest,
  type RouteGenericInterface,
} from "fastify";
import type { Logger } from "pino";
import type { Admission } from "../admission/admission.ts";
import { type Arrival, clientAddress, trustIn } from "../admission/client-address.ts";
import type { AdministrationAs } from "../core/administration/administration.ts";
import type { VerificationService } from "../core/service.ts";
import type { GetStatistics } from "../core/statistics.ts";
import type { TakeInboundMessages } from "../core/take-inbound-messages.ts";
import type { Tracing } from "../core/tracing.ts";
import { createListeners } from "../listeners.ts";
import { admissionGate } from "./admission-gate.ts";
import { admissionInterceptor } from "./admission-interceptor.ts";
import { noteFault, type RpcObserver } from "./answered-call.ts";
import { addressKey, streamKey } from "./call-context.ts";
import { compressions } from "./compressions.ts";
import { createEarlyRefusals } from "./early-refusals.ts";
import { grpcResponse } from "./grpc-response.ts";
import { strictJson } from "./json-messages.ts";
import { messageTimeoutKey, messageTimeoutSignal, startMessageTimeout } from "./message-timeout.ts";
import { clientStreamingMethods, ownMethods } from "./methods.ts";
import { keepOpenStreams } from "./open-streams.ts";
import { admittedRoutes, binaryReading, standardRoutes } from "./routes.ts";
import { readSessionsInTurns } from "./session-turns.ts";
import { keepSessions } from "./sessions.ts";
import { createShutdown } from "./shutdown.ts";
import { scheduleStreams } from "./stream-scheduling.ts";
import { takeTimeout } from "./timeouts.ts";
import { tracedGate, tracingInterceptor } from "./tracing-interceptor.ts";
import { noteRefusedConnections, noteRefusedStreams, type TransportObserver } from "./transport-refusals.ts";
import { limitUnauthenticatedStreams } from "./unauthenticated-streams.ts";
import { discardRest } from "./unread-rest.ts";

/** PEM texts. If `ca` is set, clients must present a certificate that it signed. */
export interface TlsSettings {
  readonly cert: string;
  readonly key: string;
  readonly ca: string | null;
}

export interface RpcServer {
  /** Resolves with the port it listens on. */
  listen(host: string, port: number): Promise<number>;
  /** Presents this certificate to new connections; only for a port that had TLS from the start. */
  renew(tls: TlsSettings): void;
  /** Ends streams with an error that asks to call again, answers open calls, then closes the connections. */
  close(): Promise<void>;
}

type RpcRequest = FastifyRequest<RouteGenericInterface, http2.Http2Server>;
type RpcReply = FastifyReply<RouteGenericInterface, http2.Http2Server>;

/** With this window and that of a known connection, streams carry a quarter more messages per second than with 64 KiB. */
const streamWindowBytes = 1024 * 1024;
/** Per connection, which is closed beyond that. Real clients send none, and each costs the creation of an error. */
const maxInvalidFrames = 20;
/**
 * Streams that a client may cancel on a connection, at once and per second: it is closed beyond that. With Node's 1,000 and 33, a client
 * that watches hundreds of verifications on a connection lost all of them when it cancelled as many a second time within half a minute.
 * What strangers cancel before it costs anything is limited further (`stream-scheduling.ts`).
 */
const cancelled = { streamResetBurst: 2_000, streamResetRate: 200 };
/** Any request but those of inbound messages: as much as the gateway accepts. */
const maxMessageBytes = 64 * 1024;
/**
 * A request for health or reflection, which takes no credential: a name, or the number of an extension. One of 64 KiB takes
 * milliseconds to decode, and a connection can send a thousand at once.
 */
const maxStandardMessageBytes = 1024;
/** Calls and streams that are still open after this are cut. */
const closeGraceMs = 3_000;

export function createRpcServer(parts: {
  readonly verifications: VerificationService;
  readonly takeMessages: TakeInboundMessages;
  readonly getStatistics: GetStatistics;
  readonly administrationAs: AdministrationAs;
  readonly admission: Admission;
  /** Whether the service can answer now. */
  readonly isReady: () => Promise<boolean>;
  readonly log: Logger;
  readonly observer: RpcObserver & TransportObserver;
  /** Undefined: nothing is traced. */
  readonly tracing?: Tracing | undefined;
  readonly tls: TlsSettings | null;
  /** IP addresses and CIDR ranges whose x-forwarded-for is believed. */
  readonly trustedProxies: readonly string[];
}): RpcServer {
  const { admission, isReady, log, observer, tracing, tls, trustedProxies } = parts;
  const shutdown = createShutdown();
  const sessions = keepSessions();
  const listeners = createListeners();
  const openStreams = keepOpenStreams(admission);
  const noteRefused = noteRefusedStreams({ log, observer });
  const readingTurns = readSessionsInTurns();
  const unauthenticatedStreams = limitUnauthenticatedStreams(noteRefused, readingTurns.admit);

  const options = {
    settings: { initialWindowSize: streamWindowBytes, maxConcurrentStreams: 1_000 },
    maxSessionInvalidFrames: maxInvalidFrames,
    ...cancelled,
    Http2ServerResponse: grpcResponse({
      onAnswer: unauthenticatedStreams.answered,
      onFault: (call) => noteFault({ log, observer }, call),
    }),
  };
  const server: FastifyInstance<http2.Http2Server> = fastify({
    http2: true,
    http2SessionTimeout: 0,
    logger: false,
    trustProxy: trustIn(trustedProxies),
    // A path that cannot be decoded is that of an unknown method. A proxy that gets a reset instead of a response takes this
    // process for failed, and stops sending it anybody's calls.
    frameworkErrors: (_error, request, reply) => void refuseBeforeReading(request, reply),
    serverFactory: (handler) => {
      const answer: typeof handler = (request, response) => {
        // Fastify would answer a method that its router does not know by itself, before any hook. No other than POST is served.
        if (request.method !== "POST") Object.assign(request, { method: "GET" });
        handler(request, response);
      };
      const http2Server =
        tls === null
          ? http2.createServer(options, answer)
          : http2.createSecureServer(
              { ...options, ...secureContextOf(tls), requestCert: tls.ca !== null },
              answer,
            );
      http2Server.on("connect", ({ stream }: http2.Http2ServerRequest) =>
        stream.close(http2.constants.NGHTTP2_PROTOCOL_ERROR),
      );
      // Other expectations than 100-continue may be ignored (RFC 9110, 10.1.1).
      http2Server.on("checkExpectation", (request, response) =>
        http2Server.emit("request", request, response),
      );
      readingTurns.watch(http2Server as http2.Http2Server);
      sessions.watch(http2Server as http2.Http2Server);
      scheduleStreams(http2Server as http2.Http2Server, {
        isKnown: unauthenticatedStreams.isKnown,
        noteRefused,
      });
      noteRefusedConnections(http2Server as http2.Http2Server, { log, observer });
      return http2Server as http2.Http2Server;
    },
  });

  // Connect parses bodies itself, and a body for an unknown method need not be JSON either.
  server.removeAllContentTypeParsers();

  const admitting = admissionInterceptor({ admission, openStreams, log, observer });
  const gate = admissionGate({ admission, unauthenticatedStreams, log, observer });
  const refuseUnreadable = createEarlyRefusals({ log, observer });

  server.addHook("onRequest", (request, reply, done) => {
    if (!refuseBeforeReading(request, reply)) done();
  });

  /** Refuses a call that no handler may read, and returns whether it did. Any other is prepared for its handler. */
  function refuseBeforeReading(request: RpcRequest, reply: RpcReply): boolean {
    const { raw } = request;
    // The matched pattern, without query and escapes: the code that goes by the URL would interpret those differently.
    raw.url = request.routeOptions.url ?? raw.url;
    const { url } = raw;
    // Connect accepts a media type in any case; the code here compares lower case.
    const mediaType = raw.headers["content-type"]?.toLowerCase();
    if (mediaType !== undefined) raw.headers["content-type"] = mediaType;
    // Connect builds a URL from the authority, which is used for nothing else. gRPC clients may send any text there: some send
    // all addresses of their target, or what their resolver takes for a name (`phoneproof.production:grpc`).
    raw.headers[":authority"] = "localhost";
    joinCredentials(raw);
    const method = url.slice(1);
    const hasCredential = raw.headers.authorization !== undefined && ownMethods.has(method);
    if (!unauthenticatedStreams.open(raw.stream, clientAddress(request), hasCredential)) {
      reply.hijack();
      return true;
    }
    const timeoutMs = takeTimeout(raw.headers);
    if (!clientStreamingMethods.has(method)) startMessageTimeout(raw, timeoutMs);
    discardRest(raw);
    const unrouted = { method: request.is404 ? null : method, httpMethod: request.method, mediaType };
    const isRefused = refuseUnreadable(unrouted, reply.raw);
    if (isRefused) reply.hijack();
    return isRefused;
  }

  const served = {
    // gRPC-Web is for browsers, which reach no internal service.
    grpcWeb: false,
    jsonOptions: strictJson,
    readMaxBytes: maxMessageBytes,
    binaryOptions: binaryReading,
    acceptCompression: compressions,
    shutdownSignal: shutdown.signal,
    contextValues: (request: Arrival) => {
      const raw = request.raw as unknown as http2.Http2ServerRequest;
      return createContextValues()
        .set(addressKey, clientAddress(request))
        .set(streamKey, raw.stream)
        .set(messageTimeoutKey, messageTimeoutSignal(raw));
    },
  };
  server.register(fastifyConnectPlugin, {
    ...served,
    readMaxBytes: maxStandardMessageBytes,
    routes: (router) => standardRoutes(router, isReady),
  });
  const admitted = {
    ...served,
    requestGate: tracing ? tracedGate(tracing, gate) : gate,
    interceptors: tracing ? [tracingInterceptor(), admitting] : [admitting],
  };
  server.register(fastifyConnectPlugin, {
    ...admitted,
    routes: (router) => admittedRoutes(router, { ...parts, unaryOptions: admitted }),
  });

  return {
    async listen(host, port) {
      const address = await listeners.open(server.server, { host, port }, (options) =>
        server.listen(options),
      );
      return address.port;
    },
    renew(tls) {
      // Session tickets are valid only in the context that issued them: no client resumes a session from before.
      (server.server as unknown as TlsServer).setSecureContext(secureContextOf(tls));
    },
    async close() {
      shutdown.begin();
      openStreams.close();
      sessions.close(closeGraceMs);
      listeners.stop();
      await Promise.all([server.close(), listeners.ended()]);
    },
  };
}

function secureContextOf({ cert, key, ca }: TlsSettings): SecureContextOptions {
  return { cert, key, ...(ca && { ca }) };
}

/**
 * Values of a repeated header belong together, separated by commas, which is no credential. Node takes the first, and a proxy
 * before this port may have judged the last.
 */
function joinCredentials({ headers, rawHeaders }: http2.Http2ServerRequest): void {
  const given = rawHeaders.filter(
    (_value, index) => rawHeaders[index - 1] === "authorization" && index % 2 === 1,
  );
  if (given.length > 1) headers.authorization = given.join(", ");
}
