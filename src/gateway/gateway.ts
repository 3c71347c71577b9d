/**
 * The merchants' face: the v1 contract over HTTP/1.1.
 *
 * Admission belongs to the contract's own scope and to what no route is there for; other routes registered
 * on the same instance meet neither it nor any body parser.
 */

import { setImmediate } from "node:timers/promises";
import Fastify, {
  type FastifyError,
  type FastifyInstance,
  type FastifyReply,
  type FastifyRequest,
} from "fastify";
import type { Logger } from "pino";
import type { Admission } from "../admission/admission.ts";
import type { AnsweredRequest } from "../core/answered-call.ts";
import { newRequestId } from "../core/ids.ts";
import type { VerificationService } from "../core/service.ts";
import type { Tracing } from "../core/tracing.ts";
import { asFailure, Failure, type FailureCode, isCutOff, isGone } from "../failures.ts";
import { answerUnknownRoute, lookAgain } from "./admit.ts";
import { answeredRequest } from "./answered-request.ts";
import type { ConnectionTurns } from "./connection-turns.ts";
import { announceDeprecations, type Deprecation } from "./deprecations.ts";
import { bodyLimitBytes, createHttpServer, maxHeaderBytes, trackNewest, untrack } from "./http-server.ts";
import { createOverload } from "./overload.ts";
import { referenceRoutes } from "./reference/routes.ts";
import { refuse } from "./refusal.ts";
import { logFault, logRequest } from "./request-log.ts";
import { traceRequests } from "./traced-requests.ts";
import { verificationRoutes } from "./verification-routes.ts";

declare module "fastify" {
  interface FastifyContextConfig {
    /** Its answer goes on for as long as somebody follows it. */
    readonly isStream?: boolean;
  }
  interface FastifyRequest {
    /** Since when all of it is here and it is being worked on; null: it is not yet, or only waits. */
    inHandSince: number | null;
  }
}

export interface GatewayParts {
  readonly verifications: VerificationService;
  readonly admission: Admission;
  readonly log: Logger;
  /** IP addresses and CIDR ranges whose X-Forwarded-For is believed. */
  readonly trustedProxies: readonly string[];
  /** Whether connections are to end with their next answer. */
  readonly isStopping: () => boolean;
  /** The address merchants reach it at. Known once it listens. */
  readonly publicBase: { readonly url: string };
  /** Of this gateway alone. */
  readonly turns: ConnectionTurns;
  /** Told of each request that is over. Takes no time. */
  readonly onAnswered: (request: AnsweredRequest) => void;
  /** Undefined: nothing is traced. */
  readonly tracing?: Tracing | undefined;
  readonly deprecations: readonly Deprecation[];
}

/** Does not listen yet. */
export function createGateway({
  verifications,
  admission,
  log,
  trustedProxies,
  isStopping,
  publicBase,
  turns,
  onAnswered,
  tracing,
  deprecations,
}: GatewayParts): FastifyInstance {
  const overload = createOverload(admission, turns);
  let isClosing = false;

  const begin = (request: FastifyRequest, reply: FastifyReply): void => {
    reply.header("x-request-id", request.id);
    trackNewest(reply);
    if (isStopping()) reply.raw.shouldKeepAlive = false;
    const startedAt = performance.now();
    request.inHandSince = null;
    reply.raw.on("close", () => {
      untrack(reply);
      const { raw, inHandSince } = request;
      if (reply.raw.shouldKeepAlive && raw.complete) turns.answered(raw.socket, inHandSince);
      else turns.ended(inHandSince, reply.raw.writableFinished);
      logRequest(log, request, reply, startedAt);
      onAnswered(answeredRequest(request, reply, startedAt));
      // Node closes those that are idle when it is told to stop, not those that become so afterwards.
      if (isClosing) gateway.server.closeIdleConnections();
    });
  };

  const fail = (failure: Failure, request: FastifyRequest, reply: FastifyReply): void => {
    const { call } = request;
    if (failure.code === "internal_error") logFault(log, request, failure);
    // Who gets no answer is not charged for one.
    if (call === undefined || isGone(request.raw)) {
      refuse(reply, failure);
      return;
    }
    admission
      .settle(call, failure, () => lookAgain(admission, request))
      .then(
        (settled) => refuse(reply, settled),
        (thrown) => {
          const unsettled = asFailure(thrown);
          if (unsettled.code === "internal_error") logFault(log, request, unsettled);
          refuse(reply, unsettled);
        },
      );
  };

  const gateway = Fastify({
    serverFactory: (listener) => createHttpServer(log, onAnswered, listener),
    // Fastify's own lines hold URLs; the gateway writes its own, one a request.
    logger: false,
    genReqId: newRequestId,
    bodyLimit: bodyLimitBytes,
    // Requests on connections that are still open when the service stops are answered as ever.
    return503OnClosing: false,
    clientErrorHandler: () => undefined,
    trustProxy: trustedProxies.length > 0 ? [...trustedProxies] : false,
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
      },
    },
    frameworkErrors: (error, unrouted, unroutedReply) => {
      const request = unrouted as FastifyRequest;
      const reply = unroutedReply as FastifyReply;
      begin(request, reply);
      fail(toFailure(error, request), request, reply);
    },
  });

  gateway.removeAllContentTypeParsers();
  gateway.decorateRequest("call", undefined);
  gateway.decorateRequest("look", undefined);
  gateway.decorateRequest("failureCode", undefined);
  gateway.decorateRequest("inHandSince", null);

  gateway.addHook("preValidation", (request, reply, done) => {
    // One behind another on its connection, and a stream, may wait for long, and keep nobody busy.
    if (reply.raw.socket !== null && !request.routeOptions.config.isStream) {
      request.inHandSince = performance.now();
      turns.begun(request.inHandSince);
    }
    done();
  });

  gateway.addHook("preClose", async () => {
    // Node closes what it has read nothing of, and with it what has been asked there.
    overload.stop();
    await setImmediate();
    await setImmediate();
    isClosing = true;
  });

  gateway.addHook("onRequest", (request, reply, done) => {
    begin(request, reply);
    const message = malformation(request);
    done(message === undefined ? undefined : new Failure("malformed_request", { message }));
  });

  if (tracing) traceRequests(gateway, tracing);

  gateway.setErrorHandler<FastifyError>((error, request, reply) => {
    keepConnection(request, reply);
    // Fastify looks at content types before it comes to the not-found handler.
    const isFastifys = error.code?.startsWith("FST_ERR") === true;
    if (request.is404 && isFastifys) answerUnknownRoute(admission, request, reply, fail);
    else fail(toFailure(error, request), request, reply);
  });

  gateway.setNotFoundHandler((request, reply) => {
    answerUnknownRoute(admission, request, reply, fail);
  });

  gateway.addHook("onRoute", announceDeprecations(deprecations));
  gateway.register(verificationRoutes(verifications, admission, overload));
  gateway.register(referenceRoutes(publicBase, deprecations));

  return gateway;
}

/** What Node's parser lets through: other versions, a Host that is missing or none, and headers whose first would win. */
function malformation({ raw }: FastifyRequest): string | undefined {
  if (raw.httpVersionMajor !== 1) return "The request is of another version of HTTP: send HTTP/1.1.";
  const { host } = raw.headers;
  if (host === undefined ? raw.httpVersionMinor !== 0 : !hostShape.test(host)) {
    return "The Host is missing or is no name or address: send one, such as Host: api.example.com.";
  }
  if (repeatsSingleHeader(raw.rawHeaders)) {
    return "A header came twice that may come once: send Host, Authorization and Content-Type once each.";
  }
  return undefined;
}

/** RFC 3986, 3.2.2 and 3.2.3: a name or an IP address, and a port. It may be empty (RFC 9110, 7.2). */
const hostShape = /^(?:[\w.~!$&'()*+,;=%-]*|\[[\w.~!$&'()*+,;=:-]+\])(?::\d*)?$/;

/** Whether a header comes twice that may come once (RFC 9112, 3.2; RFC 9110, 5.3). Names and values alternate. */
function repeatsSingleHeader(rawHeaders: readonly string[]): boolean {
  let hosts = 0;
  let authorizations = 0;
  let contentTypes = 0;
  for (let index = 0; index < rawHeaders.length; index += 2) {
    const name = rawHeaders[index] ?? "";
    // Of each request: most names are told apart by their length.
    if (name.length === 4 && name.toLowerCase() === "host") hosts++;
    else if (name.length === 13 && name.toLowerCase() === "authorization") authorizations++;
    else if (name.length === 12 && name.toLowerCase() === "content-type") contentTypes++;
  }
  return hosts > 1 || authorizations > 1 || contentTypes > 1;
}

/**
 * Fastify closes the connection wherever a body was refused. Here that has been read, or is read and dropped
 * by Node (for no longer than a request may take), and a close amid it could reset the connection under the
 * answer. Where the client waits to be asked for its body, it must be closed: the body may never come.
 */
function keepConnection(request: FastifyRequest, reply: FastifyReply): void {
  const { raw } = reply;
  if (reply.getHeader("connection") !== "close" || raw.hasHeader("connection")) return;
  if (raw.shouldKeepAlive && request.headers.expect === undefined) reply.header("connection", "keep-alive");
}

/** What Fastify refuses by itself, in the catalogue's words. */
const fastifyRefusals: ReadonlyMap<string, FailureCode> = new Map([
  ["FST_ERR_CTP_BODY_TOO_LARGE", "body_too_large"],
  ["FST_ERR_CTP_INVALID_MEDIA_TYPE", "unsupported_content_type"],
  ["FST_ERR_CTP_INVALID_CONTENT_LENGTH", "malformed_request"],
]);

const badUrl =
  "The path has a % that begins no escape: send two hexadecimal digits behind it, and %25 for a % itself.";

function toFailure(error: FastifyError | Failure, request: FastifyRequest): Failure {
  if (error instanceof Failure) return error;
  const refusal = fastifyRefusals.get(error.code);
  if (error.code === "FST_ERR_BAD_URL")
    return new Failure("malformed_request", { message: badUrl, cause: error });
  if (refusal !== undefined) return new Failure(refusal, { cause: error });
  if (isCutOff(error, request.raw)) return new Failure("malformed_request", { cause: error });
  return asFailure(error);
}
