/**
 * The HTTP/1.1 server under Fastify. Whatever Node would answer by itself, with statuses and bodies the
 * contract does not know (408, 413, 417, 431, empty 400s, a closed connection), is answered here instead.
 */

import {
  createServer,
  type IncomingMessage,
  type RequestListener,
  type Server,
  ServerResponse,
  STATUS_CODES,
} from "node:http";
import type { Socket } from "node:net";
import type { Duplex } from "node:stream";
import type { FastifyReply } from "fastify";
import type { Logger } from "pino";
import type { AnsweredRequest } from "../core/answered-call.ts";
import { newRequestId } from "../core/ids.ts";
import { Failure, type FailureCode } from "../failures.ts";
import { readRequestsInTurns, waitsForTurn } from "../request-turns.ts";
import { closeGently, lingerAtClose } from "./linger.ts";
import {
  afterAnswer,
  afterWaiting,
  beforeClosing,
  inTurn,
  isAnswered,
  isFollowed,
  newestReply,
} from "./pipelined-requests.ts";
import { prepareRefusal, presentFailure } from "./refusal.ts";

export const bodyLimitBytes = 64 * 1024;

/** Node's default, stated because the longest path parameter follows from it. */
export const maxHeaderBytes = 16 * 1024;

/** What is logged and counted of a request that could not be read. */
interface Refusal {
  readonly requestId: string;
  readonly status: number;
  readonly code: FailureCode;
}

/** What the gateway does with requests that could not be read. */
interface UnreadRequests {
  /** Logs and counts one that was answered before anything began with it. */
  readonly refused: (refusal: Refusal) => void;
  readonly breakOff: BreakOff;
}

type Answer = (reply: FastifyReply, failure: Failure) => void;

/**
 * Ends a request whose body broke off: calls `answer` with what to answer, once the call has been charged. Does not call it if
 * another response is on its way.
 */
export type BreakOff = (reply: FastifyReply, failure: Failure, answer: Answer) => void;

interface ClientError extends Error {
  readonly code?: string;
  readonly rawPacket?: Buffer;
  readonly bytesParsed?: number;
}

/** Connections given up: Node reports an error for each further chunk of unparsable input. */
const abandoned = new WeakSet<Duplex>();

export interface HttpServerParts {
  readonly log: Logger;
  readonly onAnswered: (request: AnsweredRequest) => void;
  readonly breakOff: BreakOff;
  /** Aborted once connections are to close after the response to the newest request on them. */
  readonly stopping: AbortSignal;
}

export function createHttpServer(
  { log, onAnswered, breakOff, stopping }: HttpServerParts,
  listener: RequestListener,
): Server {
  const refused = (refusal: Refusal) => {
    log.info({ ...refusal }, "request");
    onAnswered({
      method: "",
      route: undefined,
      status: refusal.status,
      failureCode: refusal.code,
      seconds: 0,
    });
  };

  const server = createServer(
    {
      maxHeaderSize: maxHeaderBytes,
      headersTimeout: 10_000,
      requestTimeout: 10_000,
      // Longer than the two minutes after which Caddy drops idle connections, others after one: a proxy must close first, or a
      // request that it sends meanwhile fails.
      keepAliveTimeout: 130_000,
      connectionsCheckingInterval: 1_000,
      // The gateway refuses a missing Host itself, in the contract's shape.
      requireHostHeader: false,
    },
    (request, response) => {
      // After a response that closes its connection, none can follow, and nothing is done for it (RFC 9112, 9.6).
      if (!request.socket.writable) return;
      if (request.url?.includes("%")) request.url = decodable(request.url);
      // A response has no socket while an earlier one on its connection is still to be sent.
      if (response.socket !== null) listener(request, response);
      else inTurn(request, () => listener(request, response));
    },
  );
  const unread: UnreadRequests = { refused, breakOff };
  readRequestsInTurns(server);
  // A client may half-close once it has sent its request; by default, Node would then drop the response.
  Object.assign(server, { httpAllowHalfOpen: true });
  const connections = new Set<Socket>();
  server.on("connection", (socket) => {
    connections.add(socket);
    socket.on("close", () => connections.delete(socket));
    socket.on("end", () => endStream(socket));
  });
  stopping.addEventListener("abort", () => connections.forEach(closeAfterAnswer), { once: true });
  keepAnswering(server, connections);
  // Node's own leaves out a connection once it has received a CONNECT.
  server.closeAllConnections = () => connections.forEach((socket) => void socket.destroy());
  server.on("clientError", (error: ClientError, socket) => endBroken(unread, error, socket));
  server.on("connect", (request, socket) => answerConnect(server, request, socket));
  server.on("checkContinue", (request, response) => {
    // A body that will be refused for its size is not asked for.
    if (!(Number(request.headers["content-length"]) > bodyLimitBytes)) response.writeContinue();
    server.emit("request", request, response);
  });
  // Other expectations than 100-continue may be ignored (RFC 9110, 10.1.1).
  server.on("checkExpectation", (request, response) => server.emit("request", request, response));
  return server;
}

/** The response of a request in progress says that its connection closes, unless others follow it on the connection. */
function closeAfterAnswer(socket: Socket): void {
  const newest = newestReply(socket);
  if (newest === undefined || newest.raw.headersSent || isFollowed(socket)) return;
  newest.raw.shouldKeepAlive = false;
  if (newest.hasHeader("connection")) newest.header("connection", "close");
}

/**
 * Node takes a connection for idle as soon as its last response was written, and would close it before all of it was
 * sent, and before the requests that wait here have begun.
 */
function keepAnswering(server: Server, connections: ReadonlySet<Socket>): void {
  const closeIdleConnections = server.closeIdleConnections.bind(server);
  server.closeIdleConnections = () => {
    const busy = [...connections].filter((socket) => {
      const newest = newestReply(socket)?.raw;
      return (newest !== undefined && !isAnswered(newest)) || isFollowed(socket) || waitsForTurn(socket);
    });
    for (const socket of busy) Object.assign(socket, { destroy: () => socket });
    closeIdleConnections();
    for (const socket of busy) Reflect.deleteProperty(socket, "destroy");
  };
}

/** Escapes the escapes of bytes that are not UTF-8: the router can decode such a path, which then leads to nothing. */
function decodable(url: string): string {
  const [path = "", ...query] = url.split("?");
  try {
    decodeURIComponent(path);
    return url;
  } catch {
    const hasBrokenEscape = /%(?![0-9a-f]{2})/i.test(path);
    return hasBrokenEscape ? url : [path.replaceAll("%", "%25"), ...query].join("?");
  }
}

/** A client that half-closes during a response without an end has left, although it could still be reading. */
function endStream(socket: Socket): void {
  const answer = newestReply(socket)?.raw;
  if (answer?.headersSent === true && !answer.writableEnded) socket.destroy();
}

/**
 * Gives up a connection whose input cannot be parsed any further.
 *
 * Invariant: responses leave in the order of their requests, one each. An error within a request's body is answered as
 * that request; an error after a complete request waits until that is answered.
 */
function endBroken(unread: UnreadRequests, error: ClientError, socket: Duplex): void {
  if (abandoned.has(socket)) return;
  abandoned.add(socket);
  if (!isUnreadableRequest(error, socket)) {
    socket.destroy();
    return;
  }
  const isLeft = isLeftUnread(error, socket as Socket);
  afterWaiting(socket, () => (isLeft ? leaveUnanswered(socket) : answerBroken(unread, error, socket)));
}

/** Whether it was not the client that was too slow: the rest of its request may have arrived long ago. */
function isLeftUnread({ code }: ClientError, socket: Socket): boolean {
  return code === "ERR_HTTP_REQUEST_TIMEOUT" && (socket.isPaused() || waitsForTurn(socket));
}

/** A client that gets no answer may send its request again; after a 400 it would not. */
function leaveUnanswered(socket: Duplex): void {
  const reply = newestReply(socket);
  if (reply?.request.raw.complete) afterAnswer(reply.raw, () => closeGently(socket));
  else socket.destroy();
}

function answerBroken({ refused, breakOff }: UnreadRequests, error: ClientError, socket: Duplex): void {
  const reply = newestReply(socket);
  if (reply === undefined) {
    refuseUnread(refused, error, socket);
  } else if (reply.request.raw.complete) {
    beforeClosing(reply.raw, () => refuseUnread(refused, error, socket));
  } else if (reply.raw.headersSent) {
    afterAnswer(reply.raw, () => socket.destroy());
  } else {
    // Whichever response it gets is the last one.
    reply.raw.shouldKeepAlive = false;
    lingerAtClose(reply.request.raw.socket);
    breakOff(reply, new Failure("malformed_request"), interrupt);
  }
}

/** A reset or a failed write is no unreadable request, nor is a connection that was opened and never used. */
function isUnreadableRequest(error: ClientError, socket: Duplex): boolean {
  const code = error.code ?? "";
  const unreadable = code.startsWith("HPE_") || code === "ERR_HTTP_REQUEST_TIMEOUT";
  return unreadable && socket.writable && (socket as Socket).bytesRead > 0;
}

/** Answers without Fastify, which waits for the rest of a body that will never arrive. */
function interrupt(reply: FastifyReply, failure: Failure): void {
  const { request, raw } = reply;
  // The client may have disconnected while the call was charged.
  if (raw.headersSent) return;
  prepareRefusal(reply, failure);
  const body = Buffer.from(JSON.stringify(presentFailure(failure, request.id)));
  for (const [name, value] of Object.entries(reply.getHeaders())) {
    if (value !== undefined) raw.setHeader(name, value);
  }
  raw.writeHead(failure.status, {
    "content-type": "application/json; charset=utf-8",
    "content-length": body.length,
  });
  raw.end(body);
}

function refuseUnread(refused: (refusal: Refusal) => void, error: ClientError, socket: Duplex): void {
  if (!socket.writable) {
    socket.destroy();
    return;
  }
  const failure = new Failure(namesUnknownMethod(error) ? "route_not_found" : "malformed_request");
  const requestId = newRequestId();
  const body = JSON.stringify(presentFailure(failure, requestId));
  closeGently(
    socket,
    [
      `HTTP/1.1 ${failure.status} ${STATUS_CODES[failure.status]}`,
      "content-type: application/json; charset=utf-8",
      `content-length: ${Buffer.byteLength(body)}`,
      "cache-control: no-store",
      `x-request-id: ${requestId}`,
      `date: ${new Date().toUTCString()}`,
      "connection: close",
      "",
      body,
    ].join("\r\n"),
  );
  refused({ requestId, status: failure.status, code: failure.code });
}

/**
 * Node's parser has a list of methods; a method that is not on it is unknown, not malformed. What the parser has
 * consumed is the beginning of a known method, after anything before the request. The rest of the line may arrive in a
 * later packet: what is there must read as a request line.
 */
function namesUnknownMethod({ code, rawPacket, bytesParsed }: ClientError): boolean {
  if (code !== "HPE_INVALID_METHOD" || rawPacket === undefined || bytesParsed === undefined) return false;
  const lineEnd = rawPacket.indexOf("\n", bytesParsed);
  const rest = rawPacket.toString("latin1", bytesParsed, lineEnd === -1 ? undefined : lineEnd);
  const method = tokenAtStart.exec(rest)?.[0] ?? "";
  const hasMethod =
    method !== "" ||
    (bytesParsed > 0 && tokenAtStart.test(rawPacket.toString("latin1", bytesParsed - 1, bytesParsed)));
  if (!hasMethod) return false;
  return (lineEnd === -1 ? targetAndMaybeVersion : targetAndVersion).test(rest.slice(method.length));
}

const tokenAtStart = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+/;
const targetAndVersion = /^ \S+ HTTP\/1\.[01]\r?$/;
const targetAndMaybeVersion = /^ \/\S*(?: (?:H|HT|HTT|HTTP|HTTP\/|HTTP\/1|HTTP\/1\.|HTTP\/1\.[01]\r?)?)?$/;

/** CONNECT is answered like any other method without a route; Node would close the connection. */
function answerConnect(server: Server, request: IncomingMessage, socket: Duplex): void {
  socket.on("error", () => socket.destroy());
  const answer = () => {
    if (!socket.writable) {
      socket.destroy();
      return;
    }
    const response = new ServerResponse(request);
    response.shouldKeepAlive = false;
    response.assignSocket(socket as Socket);
    response.once("finish", () => closeGently(socket));
    server.emit("request", request, response);
  };
  afterWaiting(socket, () => {
    const previous = newestReply(socket);
    if (previous === undefined) answer();
    else afterAnswer(previous.raw, answer);
  });
}
