/** Requests of one connection: which is the newest, and which wait for the responses to earlier ones. */

import type { IncomingMessage, ServerResponse } from "node:http";
import type { Socket } from "node:net";
import type { Duplex } from "node:stream";
import type { FastifyReply } from "fastify";
import { closeInTurns } from "../closing-turns.ts";
import { holdRest } from "../request-turns.ts";
import { inTurnsOf } from "../turns-of-work.ts";
import { isPaused } from "./paused-sockets.ts";

/** The newest request of each connection: input that cannot be parsed belongs to it, or follows it. */
const newestReplies = new WeakMap<Duplex, FastifyReply>();

/** Requests that wait for the responses to earlier ones on their connection, in order. Exists only where a client pipelines. */
const queues = new WeakMap<Duplex, Queue>();

interface Queue {
  readonly waiting: Waiting[];
  isPaused: boolean;
}

interface Waiting {
  readonly waitsFor: (newest: FastifyReply) => boolean;
  readonly begin: () => void;
}

/**
 * If more requests than this wait on a connection, it is not read any further: they take memory. What was read of it before is parsed all
 * the same, unless so many wait on all connections together: a head of which only a part was parsed may time out.
 */
const longestQueue = 64;
const mostWaiting = 10_000;
let waitingOnAll = 0;

/**
 * Reads of a connection that may be worked on at once, and how many of them begin in one round of the event loop. A single piece of
 * received data holds more than a thousand: if all began at once, nobody else would be served meanwhile, and all of their responses
 * would be in memory if nobody reads them.
 */
const mostAtOnce = 64;
const mostInRound = 8;
/** Of all connections together, in a turn of the event loop. */
const spentInTurnMs = 5;

const advanceInTurns = inTurnsOf(spentInTurnMs);

/** Of a request that began beside those before it: how many have since the last that began alone. */
const besides = new WeakMap<FastifyReply, number>();

export function trackNewest(reply: FastifyReply): void {
  newestReplies.set(reply.request.raw.socket, reply);
}

/**
 * To be called when the response has left. If it left before its request was read completely, further input still
 * belongs to that request.
 */
export function untrack(reply: FastifyReply): void {
  const { socket, complete } = reply.request.raw;
  if (complete && newestReplies.get(socket) === reply) newestReplies.delete(socket);
}

export function newestReply(socket: Duplex): FastifyReply | undefined {
  return newestReplies.get(socket);
}

/** Whether requests wait behind the newest one that has begun on this connection. */
export function isFollowed(socket: Duplex): boolean {
  return (queues.get(socket)?.waiting.length ?? 0) > 0;
}

/**
 * Begins a pipelined request: at once if both it and the requests before it are safe and those are few, otherwise when they have
 * been answered (RFC 9112, 9.3.2), so that a read behind a cancel sees its effect.
 */
export function inTurn(request: IncomingMessage, listener: () => void): void {
  const { socket } = request;
  closeInTurns(socket);
  const waitsFor = (newest: FastifyReply) =>
    !(isSafe(request) && isSafe(newest.request.raw)) || besidesOf(newest) >= mostAtOnce - 1;
  const begin = () => beginBeside(socket, listener);
  if (enqueued(socket, { waitsFor, begin })) return;
  const newest = newestReplies.get(socket);
  if (newest === undefined || !(waitsFor(newest) || endsRound(newest))) {
    begin();
    return;
  }
  queues.set(socket, { waiting: [{ waitsFor, begin }], isPaused: false });
  waitingOnAll += 1;
  if (waitsFor(newest)) advanceAfter(newest.raw, socket);
  else advanceInTurns(() => advance(socket));
}

function beginBeside(socket: Duplex, begin: () => void): void {
  const before = newestReplies.get(socket);
  begin();
  const own = newestReplies.get(socket);
  if (own !== undefined && before !== undefined) besides.set(own, besidesOf(before) + 1);
}

const besidesOf = (reply: FastifyReply) => besides.get(reply) ?? 0;

const endsRound = (reply: FastifyReply) => (besidesOf(reply) + 1) % mostInRound === 0;

/** RFC 9110, 9.2.1. */
function isSafe({ method }: IncomingMessage): boolean {
  return method === "GET" || method === "HEAD" || method === "OPTIONS" || method === "TRACE";
}

/** Does something after all requests that wait on this connection have begun; at once if none waits. */
export function afterWaiting(socket: Duplex, begin: () => void): void {
  if (!enqueued(socket, { waitsFor: () => false, begin })) begin();
}

/** Queues the request behind others that wait, if there are any, and returns whether it did: no request overtakes another. */
function enqueued(socket: Duplex, next: Waiting): boolean {
  const queue = queues.get(socket);
  if (queue === undefined) return false;
  queue.waiting.push(next);
  waitingOnAll += 1;
  if (queue.waiting.length > longestQueue) {
    if (!queue.isPaused) stopReading(socket, queue);
    if (waitingOnAll > mostWaiting) holdRest(socket as Socket);
  }
  return true;
}

/**
 * Until none waits: Node resumes reading after each request that it has parsed, and for the body of each that begins, which has
 * arrived if another request follows it.
 */
function stopReading(socket: Duplex, queue: Queue): void {
  queue.isPaused = true;
  socket.pause();
  Object.assign(socket, { resume: () => socket });
}

function readOn(socket: Duplex): void {
  Reflect.deleteProperty(socket, "resume");
  if (!isPaused(socket as Socket)) socket.resume();
}

/** In a round of its own of the event loop: some requests are answered at once, and a connection may hold thousands of them. */
function advanceAfter(response: ServerResponse, socket: Duplex): void {
  afterAnswer(response, () => advanceInTurns(() => advance(socket)));
}

/** To be called when the newest response has left, or in a new round. Requests that still wait when the connection ends do not begin. */
function advance(socket: Duplex): void {
  const queue = queues.get(socket);
  if (queue === undefined) return;
  let isRoundOver = false;
  for (let next = queue.waiting[0]; next !== undefined && socket.writable; next = queue.waiting[0]) {
    const newest = newestReplies.get(socket);
    if (newest !== undefined && !isAnswered(newest.raw) && next.waitsFor(newest)) {
      advanceAfter(newest.raw, socket);
      return;
    }
    if (isRoundOver) {
      advanceInTurns(() => advance(socket));
      return;
    }
    queue.waiting.shift();
    waitingOnAll -= 1;
    next.begin();
    const begun = newestReplies.get(socket);
    isRoundOver = begun !== undefined && endsRound(begun);
  }
  waitingOnAll -= queue.waiting.length;
  queues.delete(socket);
  if (queue.isPaused) readOn(socket);
}

export function isAnswered(response: ServerResponse): boolean {
  return response.writableFinished || response.destroyed;
}

export function afterAnswer(response: ServerResponse, then: () => void): void {
  if (isAnswered(response)) then();
  else response.once("close", then);
}

/**
 * As `afterAnswer`, but before Node closes the connection, as it does after the last response to a client that has half-closed.
 * Nothing follows a response that announces the close.
 */
export function beforeClosing(response: ServerResponse, then: () => void): void {
  if (isAnswered(response)) then();
  else response.prependOnceListener("finish", () => response.shouldKeepAlive && then());
}
