/**
 * The HTTP/1.1 server under Fastify. Whatever Node would answer by itself, with statuses and bodies the
 * contract does not know (408, 413, 417, 431, empty 400s, a closed connection), is answered here instead.
 */

import type { IncomingMessage, RequestListener, Server } from "node:http";
import { createServer, ServerResponse, STATUS_CODES } from "node:http";
import type { Socket } from "node:net";
import type { Duplex } from "node:stream";
import type { FastifyReply } from "fastify";
import type { Logger } from "pino";
import type { AnsweredRequest } from "../core/answered-call.ts";
import { newRequestId } from "../core/ids.ts";
import { Failure, type FailureCode } from "../failures.ts";
import { closeGently, lingerAtClose } from "./linger.ts";
import { isUnheard } from "./listening.ts";
import { presentFailure } from "./refusal.ts";

export const bodyLimitBytes = 64 * 1024;

/** Node's default, said because the longest path parameter follows from it. */
export const maxHeaderBytes = 16 * 1024;

/** What is left of a request that could not be read. */
interface Refusal {
  readonly requestId: string;
  readonly status: number;
  readonly code: FailureCode;
}

interface ClientError extends Error {
  readonly code?: string;
  readonly rawPacket?: Buffer;
  readonly bytesParsed?: number;
}

/** The newest request of each connection, which is the one that what cannot be parsed belongs to or follows. */
const newestReplies = new WeakMap<Duplex, FastifyReply>();

/** What waits on a connection for answers to what came before it, in its order. Only where a client pipelines. */
const queues = new WeakMap<Duplex, Queue>();

interface Queue {
  readonly waiting: Waiting[];
  isPaused: boolean;
}

interface Waiting {
  readonly waitsFor: (newest: FastifyReply) => boolean;
  readonly begin: () => void;
}

/** Where so many wait on a connection, it is not read on: they take memory. */
const longestQueue = 64;

/** Connections given up. Node reports every further piece of what it could not parse. */
const abandoned = new WeakSet<Duplex>();

export function trackNewest(reply: FastifyReply): void {
  newestReplies.set(reply.request.raw.socket, reply);
}

/** To be called when the answer has left. One that left before its request was read to its end still owns what comes in. */
export function untrack(reply: FastifyReply): void {
  const { socket, complete } = reply.request.raw;
  if (complete && newestReplies.get(socket) === reply) newestReplies.delete(socket);
}

export function createHttpServer(
  log: Logger,
  onAnswered: (request: AnsweredRequest) => void,
  listener: RequestListener,
): Server {
  const refused = (refusal: Refusal) => {
    log.info({ ...refusal }, "request");
    onAnswered({
      method: "",
      route: undefined,
      status: refusal.status,
      failureCode: refusal.code,
      charged: false,
      seconds: 0,
    });
  };

  const server = createServer(
    {
      maxHeaderSize: maxHeaderBytes,
      headersTimeout: 10_000,
      requestTimeout: 10_000,
      // Longer than the minute after which load balancers drop idle connections: they must be first.
      keepAliveTimeout: 75_000,
      connectionsCheckingInterval: 1_000,
      // Its absence is refused by the gateway, in the contract's shape.
      requireHostHeader: false,
    },
    (request, response) => {
      if (request.url?.includes("%")) request.url = decodable(request.url);
      // A response has its socket unless one before it is still to be sent.
      if (response.socket !== null) listener(request, response);
      else inTurn(request, () => listener(request, response));
    },
  );
  // A client may close its side once it has sent its request; Node would drop the answer.
  Object.assign(server, { httpAllowHalfOpen: true });
  server.on("connection", (socket) => socket.on("end", () => endStream(socket)));
  server.on("clientError", (error: ClientError, socket) => endBroken(refused, error, socket));
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

/**
 * Begins a request behind others that are not answered yet: at once where they are safe and it is, too, or else
 * when they have been answered (RFC 9112, 9.3.2), so that a read behind a cancel sees what it did.
 */
function inTurn(request: IncomingMessage, begin: () => void): void {
  const { socket } = request;
  const waitsFor = (newest: FastifyReply) => !(isSafe(request) && isSafe(newest.request.raw));
  if (enqueued(socket, { waitsFor, begin })) return;
  const newest = newestReplies.get(socket);
  if (newest === undefined || !waitsFor(newest)) {
    begin();
    return;
  }
  queues.set(socket, { waiting: [{ waitsFor, begin }], isPaused: false });
  afterAnswer(newest.raw, () => advance(socket));
}

/** RFC 9110, 9.2.1. */
function isSafe({ method }: IncomingMessage): boolean {
  return method === "GET" || method === "HEAD" || method === "OPTIONS" || method === "TRACE";
}

/** Whether it has to wait because others do. Nothing overtakes. */
function enqueued(socket: Duplex, next: Waiting): boolean {
  const queue = queues.get(socket);
  if (queue === undefined) return false;
  queue.waiting.push(next);
  if (queue.waiting.length > longestQueue) process.nextTick(() => stopReading(socket, queue));
  return true;
}

/**
 * To be called when what has come is parsed: Node begins to read again after each request. It also does so for the body of one
 * whose turn it is, so what comes of that is stopped anew.
 */
function stopReading(socket: Duplex, queue: Queue): void {
  if (queues.get(socket) !== queue || queue.waiting.length <= longestQueue) return;
  queue.isPaused = true;
  socket.pause();
}

/** To be called when the newest answer has left. What is left when a connection ends does not begin. */
function advance(socket: Duplex): void {
  const queue = queues.get(socket);
  if (queue === undefined) return;
  for (let next = queue.waiting.shift(); next !== undefined; next = queue.waiting.shift()) {
    const newest = newestReplies.get(socket);
    if (newest !== undefined && !isAnswered(newest.raw) && next.waitsFor(newest)) {
      queue.waiting.unshift(next);
      afterAnswer(newest.raw, () => advance(socket));
      return;
    }
    if (!socket.writable) break;
    next.begin();
  }
  queues.delete(socket);
  if (queue.isPaused && !isUnheard(socket as Socket)) socket.resume();
}

/** Escapes of bytes that are no text stand for themselves: the path is one that is not there, and the router can read it. */
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

/** A client that closes its side amid a stream without an end has left, though it could still be listening. */
function endStream(socket: Socket): void {
  const answer = newestReplies.get(socket)?.raw;
  if (answer?.headersSent === true && !answer.writableEnded) socket.destroy();
}

/**
 * Gives up a connection whose input cannot be read on.
 *
 * Invariant: answers leave in the order of their requests, one each. What breaks while a request's body is
 * being read is answered as that request; what follows a whole request waits until that is answered.
 */
function endBroken(refused: (refusal: Refusal) => void, error: ClientError, socket: Duplex): void {
  if (abandoned.has(socket)) return;
  abandoned.add(socket);
  if (!isUnreadableRequest(error, socket)) {
    socket.destroy();
    return;
  }
  const end = () => answerBroken(refused, error, socket);
  if (!enqueued(socket, { waitsFor: () => false, begin: end })) end();
}

function answerBroken(refused: (refusal: Refusal) => void, error: ClientError, socket: Duplex): void {
  const reply = newestReplies.get(socket);
  if (reply === undefined) {
    refuseUnread(refused, error, socket);
  } else if (reply.request.raw.complete) {
    afterAnswer(reply.raw, () => refuseUnread(refused, error, socket));
  } else if (reply.raw.headersSent) {
    afterAnswer(reply.raw, () => socket.destroy());
  } else {
    interrupt(reply);
  }
}

/** A reset or a failed write is not a request, nor is a connection that was opened and never used. */
function isUnreadableRequest(error: ClientError, socket: Duplex): boolean {
  const code = error.code ?? "";
  const unreadable = code.startsWith("HPE_") || code === "ERR_HTTP_REQUEST_TIMEOUT";
  return unreadable && socket.writable && (socket as Socket).bytesRead > 0;
}

function isAnswered(response: ServerResponse): boolean {
  return response.writableFinished || response.destroyed;
}

function afterAnswer(response: ServerResponse, then: () => void): void {
  if (isAnswered(response)) then();
  else response.once("close", then);
}

/** Answers past Fastify, which waits for the rest of a body that will never come. */
function interrupt(reply: FastifyReply): void {
  const failure = new Failure("malformed_request");
  const { request, raw } = reply;
  request.failureCode = failure.code;
  const body = Buffer.from(JSON.stringify(presentFailure(failure, request.id)));
  raw.shouldKeepAlive = false;
  lingerAtClose(request.raw.socket);
  raw.writeHead(failure.status, {
    "content-type": "application/json; charset=utf-8",
    "content-length": body.length,
    "x-request-id": request.id,
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
 * Node's parser knows a list of methods; one that is not on it is an unknown method, not a malformed request.
 * What it has parsed is the beginning of a known one, behind whatever came before the request. The rest of the
 * line may be in a packet that is still to come: so far as it is there, it must read as one.
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

/** CONNECT is a method like any other that has no route; Node would close the connection. */
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
  const begin = () => {
    const previous = newestReplies.get(socket);
    if (previous === undefined) answer();
    else afterAnswer(previous.raw, answer);
  };
  if (!enqueued(socket, { waitsFor: () => false, begin })) begin();
}
