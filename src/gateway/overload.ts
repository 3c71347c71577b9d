/**
 * Sheds load in the gateway. A refusal takes time, too: a refused connection is not read before its Retry-After has
 * passed, and then in turn, so that clients that retry regardless take no time from those that are served.
 */

import type { Socket } from "node:net";
import type { FastifyReply } from "fastify";
import type { Admission } from "../admission/admission.ts";
import type { RateLimitBucket } from "../admission/rate-limits.ts";
import { Failure } from "../failures.ts";
import type { ConnectionTurns } from "./connection-turns.ts";
import { isPaused, markPaused, pauseReading, resumeReading } from "./paused-sockets.ts";
import { refuse } from "./refusal.ts";

/** A refusal takes up to 0.1 ms: this rate leaves a process most of its time. */
const refusalsPerSecond = 2_000;

/**
 * A refusal takes about as long as serving a call: for each call that is refused because turns come late, this many are
 * served, or a slow process would do little but refuse. Credit accumulates up to `servedAtMost` calls.
 */
const servedPerRefusal = 3;
const servedAtMost = 1_000;

/** Longest pause before the turn: less than Node's timeout of ten seconds for a half-read request, which keeps running. */
const longestSeconds = 8;

/** Created once: when they are needed most, there is no time to capture a stack trace. */
const failures: Failure[] = [];

export interface Overload {
  /**
   * Answers service_unavailable if a call would only wait. Its Retry-After grows with the number of connections whose own
   * is not over yet. Returns whether it has answered.
   */
  sheds(bucket: RateLimitBucket, reply: FastifyReply): boolean;
  /** From now on every connection is read. */
  stop(): void;
}

/**
 * One per gateway. Each value of Retry-After is given to `perSecond` connections. As many as that makes together may be
 * unread because they were refused.
 */
export function createOverload(
  admission: Pick<Admission, "isOverloaded">,
  turns: Pick<ConnectionTurns, "isLate" | "readInTurn" | "refusedWaiting" | "stop">,
  perSecond = refusalsPerSecond,
): Overload {
  /** Connections that were refused and whose Retry-After is not over: those that wait for their turn are not among them. */
  const pausedSockets = new Set<Socket>();
  /** Admitted calls that no refusal has been counted against yet. */
  let served = servedAtMost;
  let isStopped = false;

  /** Many may be due at once, and each is most likely to be refused again: they wait behind those that are served. */
  function resume(socket: Socket): void {
    if (pausedSockets.delete(socket)) turns.readInTurn(socket);
  }

  /** Stops reading a connection until `at`. Until then, a client's disconnect is not noticed either. */
  function pauseUntil(at: number, socket: Socket): void {
    if (isStopped) {
      resumeReading(socket);
    } else if (!socket.destroyed) {
      pauseReading(socket);
      pausedSockets.add(socket);
      setTimeout(resume, Math.max(0, at - performance.now()), socket).unref();
    }
  }

  return {
    sheds(bucket, reply) {
      const isLate = served >= servedPerRefusal && turns.isLate();
      if (!isLate && !admission.isOverloaded(bucket)) {
        served = Math.min(served + 1, servedAtMost);
        return false;
      }
      served = Math.max(served - servedPerRefusal, 0);
      const { raw: request } = reply.request;
      const { socket } = request;
      // With this many unread connections, the connection is closed: its client has to retry on another. Of those that
      // wait for their turn, too, it is not noticed that their clients have left.
      const areTooMany = pausedSockets.size + turns.refusedWaiting() >= longestSeconds * perSecond;
      if (areTooMany) reply.raw.shouldKeepAlive = false;
      const retryAfterSeconds = areTooMany ? longestSeconds : 1 + Math.floor(pausedSockets.size / perSecond);
      failures[retryAfterSeconds] ??= new Failure("service_unavailable", { retryAfterSeconds });
      refuse(reply, failures[retryAfterSeconds]);
      if (isStopped || !reply.raw.shouldKeepAlive) return true;
      const at = performance.now() + retryAfterSeconds * 1_000;
      const isFirst = !isPaused(socket);
      if (isFirst) markPaused(socket);
      const leave = () => {
        if (isFirst) pauseUntil(at, socket);
        // Behind a refused request on this connection, or on a connection that waits for its turn.
        else if (isPaused(socket)) pauseReading(socket);
      };
      // Not before the whole request was read: Node would resume reading for the rest of it.
      if (request.closed) leave();
      else request.once("close", leave);
      return true;
    },
    stop() {
      isStopped = true;
      for (const socket of pausedSockets) resume(socket);
      turns.stop();
    },
  };
}
