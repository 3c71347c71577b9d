import http2 from "node:http2";
import type { SecureContextOptions, Server as TlsServer } from "node:tls";
import { Code, ConnectError, type ConnectRouter, createContextValues } from "@connectrpc/connect";
import type { UniversalHandler } from "@connectrpc/connect/protocol";
import {
  codeToHttpStatus,
  codeToString,
  errorToJsonBytes,
  parseContentType as parseConnectType,
} from "@connectrpc/connect/protocol-connect";
import { parseContentType as parseGrpcType } from "@connectrpc/connect/protocol-grpc";
import { fastifyConnectPlugin } from "@connectrpc/connect-fastify";
import fastify, { type FastifyInstance } from "fastify";
import type { Logger } from "pino";
import type { Admission } from "../admission/admission.ts";
import { type Arrival, clientAddress } from "../admission/client-address.ts";
import type { AdministrationAs } from "../core/administration/administration.ts";
import { newRequestId } from "../core/ids.ts";
import type { VerificationService as VerificationServiceObject } from "../core/service.ts";
import type { GetStatistics } from "../core/statistics.ts";
import type { TakeInboundMessages } from "../core/take-inbound-messages.ts";
import type { Tracing } from "../core/tracing.ts";
import { ServerReflection } from "../gen/proto/grpc/reflection/v1/reflection_pb.ts";
import { Health } from "../gen/proto/health/v1/health_pb.ts";
import { ApiKeyService } from "../gen/proto/phoneproof/v1/api_key_pb.ts";
import { AuditService } from "../gen/proto/phoneproof/v1/audit_pb.ts";
import { DestinationNumberService } from "../gen/proto/phoneproof/v1/destination_number_pb.ts";
import { ErasureService } from "../gen/proto/phoneproof/v1/erasure_pb.ts";
import { file_phoneproof_v1_error } from "../gen/proto/phoneproof/v1/error_pb.ts";
import { InboundMessageService } from "../gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { ProjectService } from "../gen/proto/phoneproof/v1/project_pb.ts";
import { ServiceTokenService } from "../gen/proto/phoneproof/v1/service_token_pb.ts";
import { StatisticsService } from "../gen/proto/phoneproof/v1/statistics_pb.ts";
import { VerificationService } from "../gen/proto/phoneproof/v1/verification_pb.ts";
import { WebhookService } from "../gen/proto/phoneproof/v1/webhook_pb.ts";
import { administrationRoutes } from "./administration-services.ts";
import { admissionGate } from "./admission-gate.ts";
import { admissionInterceptor } from "./admission-interceptor.ts";
import { methodName, type RpcObserver } from "./answered-call.ts";
import { addressKey, callOf, streamKey } from "./call-context.ts";
import { withEncodableErrors } from "./encodable-errors.ts";
import { grpcResponse } from "./grpc-response.ts";
import { healthRoutes } from "./health-service.ts";
import { countedCompressions, withRequestLimits } from "./inbound-message-bounds.ts";
import { streamInboundMessages, streamInboundMessagesMethod } from "./inbound-message-service.ts";
import { namingFields, strictJson } from "./json-messages.ts";
import { MemoryBudget } from "./memory-budget.ts";
import {
  messageTimeoutKey,
  messageTimeoutSignal,
  startMessageTimeout,
  withMessageTimeout,
} from "./message-timeout.ts";
import { keepOpenStreams } from "./open-streams.ts";
import { reflectionRoutes } from "./reflection-service.ts";
import { refuseInHeaders } from "./refusal.ts";
import { keepSessions } from "./sessions.ts";
import { createShutdown } from "./shutdown.ts";
import { withClientFaultErrors } from "./standard-refusals.ts";
import { statisticsRoutes } from "./statistics-service.ts";
import { isOver, scheduleStreams } from "./stream-scheduling.ts";
import { takeTimeout } from "./timeouts.ts";
import { tracedGate, tracingInterceptor } from "./tracing-interceptor.ts";
import { limitUnauthenticatedStreams } from "./unauthenticated-streams.ts";
import { discardRest } from "./unread-rest.ts";
import { chargeUnreadableCalls } from "./unreadable-calls.ts";

/** PEM texts. If `ca` is set, clients must present a certificate that it signed. */
export interface TlsSettings {
  readonly cert: string;
  readonly key: string;
  readonly ca: string | null;
}

export interface RpcServer {
  /** Resolves with the address it listens on, `host:port`. */
  listen(host: string, port: number): Promise<string>;
  /** Presents this certificate to new connections; only for a port that had TLS from the start. */
  renew(tls: TlsSettings): void;
  /** Ends streams with an error that asks to call again, answers open calls, then closes the connections. */
  close(): Promise<void>;
}

const services = [
  VerificationService,
  InboundMessageService,
  ProjectService,
  ApiKeyService,
  DestinationNumberService,
  ServiceTokenService,
  WebhookService,
  ErasureService,
  AuditService,
  StatisticsService,
  Health,
];

/** Methods whose refusals carry the catalogue's code: the standard services use gRPC's own messages. */
const ownMethods: ReadonlySet<string> = new Set(
  services.filter((service) => service !== Health).flatMap(({ methods }) => methods.map(methodName)),
);

/** Methods that take a stream of messages, for as long as the client likes. */
const streamedPaths: ReadonlySet<string> = new Set(
  [InboundMessageService.method.streamInboundMessages, ServerReflection.method.serverReflectionInfo].map(
    (method) => `/${methodName(method)}`,
  ),
);

/** Methods without JSON: in it, the bytes fields of the wire form would have to be base64, which no client knows of. */
const binaryPaths: ReadonlySet<string> = new Set([
  `/${methodName(InboundMessageService.method.streamInboundMessages)}`,
]);

/** Methods that stream in either direction. The responses of all of them are streams, which last, and are taken as they come. */
const streamingMethods: ReadonlySet<string> = new Set(
  [...services, ServerReflection].flatMap(({ methods }) =>
    methods.filter(({ methodKind }) => methodKind !== "unary").map(methodName),
  ),
);

/** With these windows, streams carry a quarter more messages per second than with the defaults of 64 KiB. */
const streamWindowBytes = 1024 * 1024;
const sessionWindowBytes = 4 * 1024 * 1024;
/** Per connection, which is closed beyond that. Real clients send none, and each costs the creation of an error. */
const maxInvalidFrames = 20;
/** One request of an inbound message stream: a thousand messages of two thousand characters. */
const maxGroupBytes = 8 * 1024 * 1024;
/** For inbound message requests that have begun to arrive: eight of the largest in total, two per caller. */
const roomInAllBytes = 8 * maxGroupBytes;
const roomForEachBytes = 2 * maxGroupBytes;
/** For requests that are being decompressed: one per thread of libuv's pool, which decompresses them. */
const decompressionBytes = 4 * maxGroupBytes;
/** Any other request: as much as the gateway accepts. */
const maxMessageBytes = 64 * 1024;
/** Calls and streams that are still open after this are cut. */
const closeGraceMs = 3_000;

export function createRpcServer(parts: {
  readonly verifications: VerificationServiceObject;
  readonly takeMessages: TakeInboundMessages;
  readonly getStatistics: GetStatistics;
  readonly administrationAs: AdministrationAs;
  readonly admission: Admission;
  /** Whether the service can answer now. */
  readonly isReady: () => Promise<boolean>;
  readonly log: Logger;
  readonly observer: RpcObserver;
  /** Undefined: nothing is traced. */
  readonly tracing?: Tracing | undefined;
  readonly tls: TlsSettings | null;
  /** IP addresses and CIDR ranges whose x-forwarded-for is believed. */
  readonly trustedProxies: readonly string[];
}): RpcServer {
  const {
    verifications,
    takeMessages,
    getStatistics,
    administrationAs,
    admission,
    isReady,
    log,
    observer,
    tracing,
    tls,
    trustedProxies,
  } = parts;
  const inbound = { takeMessages, process: { unsettled: 0 } };
  const requestRoom = new MemoryBudget({ inAll: roomInAllBytes, each: roomForEachBytes });
  const decompressionRoom = new MemoryBudget({ inAll: decompressionBytes, each: decompressionBytes });
  const shutdown = createShutdown();
  const sessions = keepSessions();
  const openStreams = keepOpenStreams(admission);
  const unauthenticatedStreams = limitUnauthenticatedStreams();

  const options = {
    settings: { initialWindowSize: streamWindowBytes, maxConcurrentStreams: 1_000 },
    maxSessionInvalidFrames: maxInvalidFrames,
    Http2ServerResponse: grpcResponse({
      methods: ownMethods,
      streamedAnswers: streamingMethods,
      onAnswer: unauthenticatedStreams.answered,
      onFault({ method, requestId, failure }) {
        log.error({ requestId, method, code: failure.code, err: failure.cause }, "rpc failed");
        observer.begun(method, false);
        const { code } = failure;
        observer.answered({ method, streaming: false, code, failureCode: code, charged: false, seconds: 0 });
      },
    }),
  };
  const server: FastifyInstance<http2.Http2Server> = fastify({
    http2: true,
    http2SessionTimeout: 0,
    logger: false,
    trustProxy: trustedProxies.length > 0 ? [...trustedProxies] : false,
    // A request that fails before routing bypasses the hook below, and its response would wait for its client without
    // limit.
    frameworkErrors: (_error, _request, reply) => {
      reply.hijack();
      reply.raw.stream.close(http2.constants.NGHTTP2_PROTOCOL_ERROR);
    },
    serverFactory: (handler) => {
      const http2Server =
        tls === null
          ? http2.createServer(options, handler)
          : http2.createSecureServer(
              { ...options, ...secureContextOf(tls), requestCert: tls.ca !== null },
              handler,
            );
      const noCall = ({ stream }: http2.Http2ServerRequest) =>
        stream.close(http2.constants.NGHTTP2_PROTOCOL_ERROR);
      http2Server.on("connect", noCall).on("checkExpectation", noCall);
      http2Server.on("session", (session) => {
        session.setLocalWindowSize(sessionWindowBytes);
      });
      sessions.watch(http2Server as http2.Http2Server);
      scheduleStreams(http2Server as http2.Http2Server, unauthenticatedStreams.isKnown);
      return http2Server as http2.Http2Server;
    },
  });

  // Connect parses bodies itself, and a body for an unknown method need not be JSON either.
  server.removeAllContentTypeParsers();

  const admitting = admissionInterceptor({ admission, openStreams, log, observer });
  const gate = admissionGate({ admission, unauthenticatedStreams: unauthenticatedStreams, log, observer });
  const routeOptions = {
    requestGate: tracing ? tracedGate(tracing, gate) : gate,
    interceptors: tracing ? [tracingInterceptor(tracing), admitting] : [admitting],
  };

  function routes(router: ConnectRouter): void {
    healthRoutes(
      router,
      services.map(({ typeName }) => typeName),
      isReady,
    );
    // The error detail belongs to no service, but clients have to decode it.
    reflectionRoutes(router, services, [file_phoneproof_v1_error]);
    for (const [index, handler] of router.handlers.entries()) {
      router.handlers[index] = withClientFaultErrors(withEncodableErrors(withMessageTimeout(handler)));
    }
  }

  function admittedRoutes(router: ConnectRouter): void {
    const naming = namingFields(router);
    naming.service(VerificationService, {
      createVerification: (request, context) => verifications.createVerification(request, callOf(context)),
      getVerification: (request, context) => verifications.getVerification(request, callOf(context)),
      cancelVerification: (request, context) => verifications.cancelVerification(request, callOf(context)),
      listVerifications: (request, context) => verifications.listVerifications(request, callOf(context)),
      watchVerification: (request, context) =>
        verifications.watchVerification(request, callOf(context), context.signal),
    });
    // For a method with options of its own, Connect enables all protocols again.
    const ofGroups = {
      grpcWeb: false,
      readMaxBytes: maxGroupBytes,
      acceptCompression: countedCompressions(decompressionRoom),
    };
    router.rpc(
      streamInboundMessagesMethod,
      (requests, context) => streamInboundMessages(requests, callOf(context), inbound, context.signal),
      ofGroups,
    );
    const streaming = router.handlers.pop() as UniversalHandler;
    router.handlers.push(withRequestLimits(streaming, { maxBytes: maxGroupBytes, room: requestRoom }));
    statisticsRoutes(naming, getStatistics);
    administrationRoutes(naming, administrationAs);
    for (const [index, handler] of router.handlers.entries()) {
      const isUnary = handler.method.methodKind === "unary";
      const refusing = withEncodableErrors(withMessageTimeout(handler));
      router.handlers[index] = isUnary
        ? chargeUnreadableCalls(refusing, { admission, log, observer })
        : refusing;
    }
  }

  server.addHook("onRequest", (request, reply, done) => {
    const { raw } = request;
    // The matched pattern, without query and escapes: the code that goes by the URL would interpret those differently.
    raw.url = request.routeOptions.url ?? raw.url;
    const { url } = raw;
    // Connect accepts a media type in any case; the code here compares lower case.
    const mediaType = raw.headers["content-type"]?.toLowerCase();
    if (mediaType !== undefined) raw.headers["content-type"] = mediaType;
    // Connect builds a URL from the authority.
    if (raw.authority === undefined || !URL.canParse(`http://${raw.authority}`)) {
      reply.hijack();
      raw.stream.close(http2.constants.NGHTTP2_PROTOCOL_ERROR);
      return;
    }
    const hasCredential = raw.headers.authorization !== undefined && ownMethods.has(url.slice(1));
    if (!unauthenticatedStreams.open(raw.stream, clientAddress(request), hasCredential))
      return void reply.hijack();
    const timeoutMs = takeTimeout(raw.headers);
    if (!streamedPaths.has(url)) startMessageTimeout(raw, timeoutMs);
    discardRest(raw);
    const method = url.slice(1);
    const isPost = request.method === "POST";
    if (
      !request.is404 &&
      isPost &&
      isReadable(mediaType, streamingMethods.has(method), binaryPaths.has(url))
    ) {
      done();
      return;
    }
    // Fastify would refuse some media types before it looks for the method, in words of its own, and Connect without any.
    reply.hijack();
    if (request.is404) refuseUnread(reply.raw, "none", codeToHttpStatus(Code.Unimplemented), noSuchMethod);
    else if (isPost) refuseUnread(reply.raw, method, unsupportedMediaType, unsupported);
    else refuseUnread(reply.raw, method, methodNotAllowed, onlyPost);
  });

  /** Refuses, logs and counts a request that reaches no handler. */
  function refuseUnread(
    response: http2.Http2ServerResponse,
    method: string,
    status: number,
    error: ConnectError,
  ): void {
    const requestId = newRequestId();
    refuseInProtocol(response, requestId, status, error);
    const code = codeToString(error.code);
    log.info({ requestId, method, code, durationMs: 0 }, "rpc");
    observer.begun(method, false);
    observer.answered({ method, streaming: false, code, failureCode: undefined, charged: false, seconds: 0 });
  }

  const common = {
    // gRPC-Web is for browsers, which reach no internal service.
    grpcWeb: false,
    jsonOptions: strictJson,
    readMaxBytes: maxMessageBytes,
    shutdownSignal: shutdown.signal,
    contextValues: (request: Arrival) => {
      const raw = request.raw as unknown as http2.Http2ServerRequest;
      return createContextValues()
        .set(addressKey, clientAddress(request))
        .set(streamKey, raw.stream)
        .set(messageTimeoutKey, messageTimeoutSignal(raw));
    },
  };
  server.register(fastifyConnectPlugin, { ...common, routes });
  server.register(fastifyConnectPlugin, { ...common, ...routeOptions, routes: admittedRoutes });

  return {
    async listen(host, port) {
      await server.listen({ host, port });
      const address = server.server.address();
      return typeof address === "object" && address ? `${host}:${address.port}` : host;
    },
    renew(tls) {
      // Session tickets are valid only in the context that issued them: no client resumes a session from before.
      (server.server as unknown as TlsServer).setSecureContext(secureContextOf(tls));
    },
    async close() {
      shutdown.begin();
      openStreams.close();
      sessions.close(closeGraceMs);
      await server.close();
    },
  };
}

function secureContextOf({ cert, key, ca }: TlsSettings): SecureContextOptions {
  return { cert, key, ...(ca && { ca }) };
}

const noSuchMethod = new ConnectError("no such method", Code.Unimplemented);
const methodNotAllowed = 405;
const onlyPost = new ConnectError("this is not a POST request", Code.Unimplemented);
const unsupportedMediaType = 415;
const unsupported = new ConnectError(
  "this method does not support this Content-Type: send application/grpc or, for a unary method, application/json or application/proto",
  Code.Unimplemented,
);

/** Whether a media type, in lower case, is that of a protocol in which the method can be called. */
function isReadable(mediaType: string | undefined, isStream: boolean, isBinaryOnly: boolean): boolean {
  const grpc = parseGrpcType(mediaType ?? null);
  const connect = parseConnectType(mediaType ?? null);
  if (isBinaryOnly && (grpc?.binary === false || connect?.binary === false)) return false;
  return grpc !== undefined || connect?.stream === isStream;
}

/** Answers in the client's own protocol: a gRPC client would have to guess the code from an HTTP status. */
function refuseInProtocol(
  response: http2.Http2ServerResponse,
  requestId: string,
  status: number,
  error: ConnectError,
): void {
  const { stream, req } = response;
  // The client may have disconnected by now.
  if (isOver(stream)) return;
  const metadata = { "x-request-id": requestId };
  if (/^application\/grpc(?:\+proto|\+json)?(?:;|$)/.test(req.headers["content-type"] ?? "")) {
    refuseInHeaders(stream, error.code, error.rawMessage, metadata);
    return;
  }
  response.writeHead(status, { "content-type": "application/json", ...metadata });
  response.end(errorToJsonBytes(error, undefined));
}
