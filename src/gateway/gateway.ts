/**
 * The merchants' server: the v1 contract over HTTP/1.1.
 *
 * Admission applies to the contract's own scope and to requests without a route; other routes registered on the same
 * instance have neither admission nor any body parser.
 */

import type { AddressInfo, Socket } from "node:net";
import { setImmediate } from "node:timers/promises";
import Fastify, {
  type FastifyError,
  type FastifyInstance,
  type FastifyReply,
  type FastifyRequest,
} from "fastify";
import type { Logger } from "pino";
import type { Admission } from "../admission/admission.ts";
import { trustIn } from "../admission/client-address.ts";
import { limitAnswerTime } from "../answer-time.ts";
import type { AnsweredRequest } from "../core/answered-call.ts";
import { newRequestId } from "../core/ids.ts";
import type { VerificationService } from "../core/service.ts";
import type { Tracing } from "../core/tracing.ts";
import { asFailure, Failure, type FailureCode, isCutOff, isGone } from "../failures.ts";
import { createListeners } from "../listeners.ts";
import { runningTime } from "../running-time.ts";
import { answerUnknownRoute, authenticateAgain } from "./admit.ts";
import { answeredRequest } from "./answered-request.ts";
import type { ConnectionTurns } from "./connection-turns.ts";
import { announceDeprecations, type Deprecation } from "./deprecations.ts";
import { type BreakOff, bodyLimitBytes, createHttpServer, maxHeaderBytes } from "./http-server.ts";
import { createOverload } from "./overload.ts";
import { isFollowed, trackNewest, untrack } from "./pipelined-requests.ts";
import { referenceRoutes } from "./reference/routes.ts";
import { refuse } from "./refusal.ts";
import { logRequest, type NoteFault } from "./request-log.ts";
import { traceRequests } from "./traced-requests.ts";
import { verificationRoutes } from "./verification-routes.ts";

declare module "fastify" {
  interface FastifyContextConfig {
    /** Its response lasts as long as a client follows it. */
    readonly isStream?: boolean;
  }
  interface FastifyRequest {
    /** Since when the request is here completely and being worked on; null: not yet, or it only waits. */
    inFlightSince: number | null;
    /** What its handler returned. */
    answer: unknown;
    /** Set once it was refused for taking too long: notes an error that it meets besides, which Fastify drops. */
    noteLate: ((thrown: unknown) => void) | undefined;
  }
}

export interface GatewayParts {
  readonly verifications: VerificationService;
  readonly admission: Admission;
  readonly log: Logger;
  /** IP addresses and CIDR ranges whose X-Forwarded-For is believed. */
  readonly trustedProxies: readonly string[];
  /** Aborted once connections are to close after their next response. */
  readonly stopping: AbortSignal;
  /** The address at which merchants reach it, known once it listens. */
  readonly publicBase: { readonly url: string };
  /** Not shared with another gateway. */
  readonly turns: ConnectionTurns;
  /** Called with each finished request. Must not block. */
  readonly onAnswered: (request: AnsweredRequest) => void;
  /** Called with each failure. */
  readonly onFault: NoteFault;
  /** Undefined: nothing is traced. */
  readonly tracing?: Tracing | undefined;
  readonly deprecations: readonly Deprecation[];
}

export interface Gateway {
  readonly instance: FastifyInstance;
  /** Resolves to the address once it listens. To be called once. */
  listen(host: string, port: number): Promise<AddressInfo>;
}

export function createGateway({
  verifications,
  admission,
  log,
  trustedProxies,
  stopping,
  publicBase,
  turns,
  onAnswered,
  onFault,
  tracing,
  deprecations,
}: GatewayParts): Gateway {
  const listeners = createListeners();
  const overload = createOverload(admission, turns);
  let isClosing = false;
  /** Connections and requests. */
  let arrived = 0;

  /** Connections whose bytes may not be what their client, or a proxy before it, takes them for. Nothing more is done for them. */
  const ambiguous = new WeakSet<Socket>();

  /** Returns whether the request is to be answered. */
  const begin = (request: FastifyRequest, reply: FastifyReply): boolean => {
    const { socket } = request.raw;
    if (ambiguous.has(socket)) {
      reply.hijack();
      return false;
    }
    reply.header("x-request-id", request.id);
    // Unless the route sets something else.
    reply.header("cache-control", "no-store");
    trackNewest(reply);
    arrived++;
    if (stopping.aborted) {
      if (!isFollowed(socket)) reply.raw.shouldKeepAlive = false;
      // Fastify adds `close` to every response.
      else reply.raw.removeHeader("connection");
    }
    // After an unknown coding, the client may consider the request to end elsewhere.
    if (hasUnknownCoding(request) || asksToUpgrade(request)) {
      ambiguous.add(socket);
      reply.raw.shouldKeepAlive = false;
    }
    const startedAt = performance.now();
    request.inFlightSince = null;
    const answered = request.routeOptions.config.isStream
      ? undefined
      : limitAnswerTime(() => refuseLate(request, reply));
    reply.raw.on("close", () => {
      answered?.();
      untrack(reply);
      const { raw, inFlightSince } = request;
      if (reply.raw.shouldKeepAlive && raw.complete) turns.answered(raw.socket, inFlightSince);
      else turns.ended(inFlightSince, reply.raw.writableFinished);
      logRequest(log, request, reply, startedAt);
      onAnswered(answeredRequest(request, reply, startedAt));
      closeIdleSoon();
    });
    return true;
  };

  let isCloseDue = false;

  /** On close, Node closes the connections that are idle then, not those that become idle later. It looks at all of them. */
  const closeIdleSoon = (): void => {
    if (!isClosing || isCloseDue) return;
    isCloseDue = true;
    void setImmediate().then(() => {
      isCloseDue = false;
      gateway.server.closeIdleConnections();
    });
  };

  /** Requests that failed: their failure is charged, if it is to be, and then answered. */
  const failing = new WeakSet<FastifyRequest>();

  const fail = (failure: Failure, request: FastifyRequest, reply: FastifyReply, answer = refuse): void => {
    const { call } = request;
    failing.add(request);
    // A client that gets no response is not charged for one.
    if (call === undefined || isGone(request.raw)) {
      onFault(request, reply, failure);
      if (!reply.sent) answer(reply, failure);
      return;
    }
    void admission
      .chargeFailure(call, failure, () => authenticateAgain(admission, request))
      .then((settled) => {
        onFault(request, reply, settled);
        if (!reply.sent) answer(reply, settled);
      });
  };

  const breakOff: BreakOff = (reply, failure, answer) => {
    const { request } = reply;
    const isAdmitted = request.call !== undefined;
    // A failure that is being charged is the response, and so is a read's: its handler does not wait for a body.
    if (failing.has(request) || (isAdmitted && request.method === "GET")) {
      reply.header("connection", "close");
      return;
    }
    request.brokenOff = () => fail(failure, request, reply, answer);
    // Otherwise its credential is being looked up. If it is refused, that is the response.
    if (isAdmitted || request.checkpoint === undefined) request.brokenOff();
  };

  /** Whether a request is ended by `breakOff`, even if the rest of its body arrives after all. */
  const isBrokenOff = ({ brokenOff, call }: FastifyRequest) => brokenOff !== undefined && call !== undefined;

  /**
   * The result of what the call still waits for is dropped, and an internal error noted. A broken-off request may be answered
   * beside Fastify, so not here.
   */
  const refuseLate = (request: FastifyRequest, reply: FastifyReply): void => {
    if (reply.sent || request.brokenOff !== undefined) return;
    const failure = new Failure("service_unavailable");
    // Fastify has called the error handler of a request that failed, and would give a second error to its own.
    if (failing.has(request)) {
      refuse(reply, failure);
      return;
    }
    reply.send(failure);
    request.noteLate = (thrown) => onFault(request, reply, asFailure(thrown));
    if (request.answer instanceof Promise) request.answer.catch(request.noteLate);
  };

  const gateway = Fastify({
    serverFactory: (listener) => createHttpServer({ log, onAnswered, breakOff, stopping }, listener),
    // Fastify's own log lines contain URLs; the gateway writes its own, one per request.
    logger: false,
    genReqId: newRequestId,
    bodyLimit: bodyLimitBytes,
    // Requests on connections that are still open when the service stops are answered as usual.
    return503OnClosing: false,
    clientErrorHandler: () => undefined,
    trustProxy: trustIn(trustedProxies),
    exposeHeadRoutes: false,
    onProtoPoisoning: "ignore",
    onConstructorPoisoning: "ignore",
    routerOptions: { maxParamLength: maxHeaderBytes },
    ajv: {
      customOptions: {
        removeAdditional: false,
        coerceTypes: false,
        useDefaults: false,
        allErrors: true,
        allowUnionTypes: true,
        // The schemas are constants, which a test checks: at each start, checking them would cost more than all of them.
        validateSchema: false,
      },
    },
    frameworkErrors: (error, unrouted, unroutedReply) => {
      const request = unrouted as FastifyRequest;
      const reply = unroutedReply as FastifyReply;
      if (begin(request, reply)) fail(toFailure(error, request), request, reply);
    },
  });

  gateway.server.on("connection", () => void arrived++);
  gateway.removeAllContentTypeParsers();
  gateway.decorateRequest("call", undefined);
  gateway.decorateRequest("refusedCaller", undefined);
  gateway.decorateRequest("checkpoint", undefined);
  gateway.decorateRequest("brokenOff", undefined);
  gateway.decorateRequest("failure", undefined);
  gateway.decorateRequest("inFlightSince", null);
  gateway.decorateRequest("answer", undefined);
  gateway.decorateRequest("noteLate", undefined);

  gateway.addHook("preValidation", (request, reply, done) => {
    if (isBrokenOff(request)) return;
    // A request behind another on its connection, and a stream, may wait for long without occupying this process.
    if (reply.raw.socket !== null && !request.routeOptions.config.isStream) {
      request.inFlightSince = runningTime.now();
      turns.begun(request.inFlightSince);
    }
    done();
  });

  gateway.addHook("preClose", async () => {
    // On close, Node closes connections of which it has read nothing, with any requests on them: so they are read
    // first.
    overload.stop();
    const until = performance.now() + lastReadingMs;
    for (let before = -1; before !== arrived && performance.now() < until; ) {
      before = arrived;
      await setImmediate();
      await setImmediate();
    }
    isClosing = true;
    listeners.stop();
  });
  gateway.addHook("onClose", listeners.ended);

  gateway.addHook("onRequest", (request, reply, done) => {
    if (!begin(request, reply)) return;
    const message = malformation(request);
    done(message === undefined ? undefined : new Failure("malformed_request", { message }));
  });

  if (tracing) traceRequests(gateway, tracing);

  gateway.setErrorHandler<FastifyError>((error, request, reply) => {
    if (isBrokenOff(request)) return;
    keepConnection(request, reply);
    // Fastify checks content types before it calls the not-found handler.
    const isFastifys = error.code?.startsWith("FST_ERR") === true;
    if (request.is404 && isFastifys) answerUnknownRoute(admission, request, reply, fail);
    else fail(toFailure(error, request), request, reply);
  });

  gateway.setNotFoundHandler((request, reply) => {
    answerUnknownRoute(admission, request, reply, fail);
  });

  gateway.addHook("onRoute", announceDeprecations(deprecations));
  gateway.addHook("onRoute", (route) => {
    const { handler } = route;
    route.handler = function (request, reply) {
      request.answer = handler.call(this, request, reply);
      return request.answer;
    };
  });
  gateway.register(verificationRoutes(verifications, admission, overload));
  gateway.register(referenceRoutes(publicBase, deprecations));

  return {
    instance: gateway,
    listen: (host, port) =>
      listeners.open(gateway.server, { host, port }, (options) => gateway.listen(options)),
  };
}

/** For how long, at most, connections and requests that arrive meanwhile are taken before connections are closed. */
const lastReadingMs = 1_000;

/** Finds what Node's parser accepts: other versions, a missing or invalid Host, and repeated headers of which the first would win. */
function malformation(request: FastifyRequest): string | undefined {
  const { raw } = request;
  if (raw.httpVersionMajor !== 1) return "The HTTP version is not supported: send HTTP/1.1.";
  const { host } = raw.headers;
  if (host === undefined ? raw.httpVersionMinor !== 0 : !hostShape.test(host)) {
    return "The Host header is missing or is not a host name or address: send one, such as Host: api.example.com.";
  }
  if (hasUnknownCoding(request)) {
    return "The Transfer-Encoding is not supported: send only chunked and HTTP/1.1, or a Content-Length.";
  }
  if (repeatsSingleHeader(raw.rawHeaders)) {
    return "A header is repeated that may occur only once: send Host, Authorization and Content-Type once each.";
  }
  return undefined;
}

/** Transfer codings besides chunked, which Node does not decode, and any in HTTP/1.0, which does not know them (RFC 9112, 6.1). */
function hasUnknownCoding({ raw }: FastifyRequest): boolean {
  const coding = raw.headers["transfer-encoding"];
  return coding !== undefined && (raw.httpVersionMinor === 0 || coding.trim().toLowerCase() !== "chunked");
}

/**
 * Whether Node's parser expects another protocol behind the request, although Node then ignores the upgrade: what has arrived with
 * the request is dropped, possibly a half of the next one, and of invalid requests that follow no error is reported.
 */
function asksToUpgrade({ headers }: FastifyRequest): boolean {
  return headers.upgrade !== undefined && /\bupgrade\b/i.test(headers.connection ?? "");
}

/** RFC 3986, 3.2.2 and 3.2.3: a host name or an IP address, and a port. It may be empty (RFC 9110, 7.2). */
const hostShape = /^(?:[\w.~!$&'()*+,;=%-]*|\[[\w.~!$&'()*+,;=:-]+\])(?::\d*)?$/;

/** Whether a header that may come once comes twice (RFC 9112, 3.2; RFC 9110, 5.3). `rawHeaders` alternates names and values. */
function repeatsSingleHeader(rawHeaders: readonly string[]): boolean {
  let hosts = 0;
  let authorizations = 0;
  let contentTypes = 0;
  for (let index = 0; index < rawHeaders.length; index += 2) {
    const name = rawHeaders[index] ?? "";
    // Runs for each request: the length rules out most names.
    if (name.length === 4 && name.toLowerCase() === "host") hosts++;
    else if (name.length === 13 && name.toLowerCase() === "authorization") authorizations++;
    else if (name.length === 12 && name.toLowerCase() === "content-type") contentTypes++;
  }
  return hosts > 1 || authorizations > 1 || contentTypes > 1;
}

/**
 * Fastify closes the connection whenever it refuses a body. Here the body has been read, or Node reads and drops it
 * (for no longer than a request may take), and closing during that could reset the connection before the client has the
 * response. If the client waits for 100 Continue, the connection must close: the body may never come.
 */
function keepConnection(request: FastifyRequest, reply: FastifyReply): void {
  const { raw } = reply;
  if (reply.getHeader("connection") !== "close" || raw.hasHeader("connection")) return;
  if (raw.shouldKeepAlive && request.headers.expect === undefined) reply.header("connection", "keep-alive");
}

/** Fastify's own refusals, as the catalogue's codes. */
const fastifyRefusals: ReadonlyMap<string, FailureCode> = new Map([
  ["FST_ERR_CTP_BODY_TOO_LARGE", "body_too_large"],
  ["FST_ERR_CTP_INVALID_MEDIA_TYPE", "unsupported_content_type"],
  ["FST_ERR_CTP_INVALID_CONTENT_LENGTH", "malformed_request"],
]);

const badUrl =
  "The path has a % without two hexadecimal digits after it: send a valid escape, and %25 for a literal %.";

function toFailure(error: FastifyError | Failure, request: FastifyRequest): Failure {
  if (error instanceof Failure) return error;
  const refusal = fastifyRefusals.get(error.code);
  if (error.code === "FST_ERR_BAD_URL")
    return new Failure("malformed_request", { message: badUrl, cause: error });
  if (refusal !== undefined) return new Failure(refusal, { cause: error });
  if (isCutOff(error, request.raw)) return new Failure("malformed_request", { cause: error });
  return asFailure(error);
}
