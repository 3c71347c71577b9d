/**
 * How the gateway says that it has too much to do. Saying so takes time, too: a connection that was told is not listened to
 * before it may come again, so that whoever asks on regardless takes nothing from those that are served.
 */

import type { Socket } from "node:net";
import type { FastifyReply } from "fastify";
import type { Admission, RateLimitBucket } from "../admission/admission.ts";
import { Failure } from "../failures.ts";
import type { ConnectionTurns } from "./connection-turns.ts";
import { isUnheard, leaveUnheard, listenTo, stopListening } from "./listening.ts";
import { refuse } from "./refusal.ts";

/** Refusals take up to 0.1 ms each: these leave a process most of its time. */
const refusalsPerSecond = 2_000;

/**
 * To tell somebody to come again takes about as long as to serve them: for each that is told because its turn came late so many
 * are served, or else a slow process would do little but refuse. At most `servedAtMost` are kept for later.
 */
const servedForEachTold = 3;
const servedAtMost = 1_000;

/** Of a request that is half read when its connection is left, Node waits ten seconds for the rest, whether anybody reads it or not. */
const longestSeconds = 8;

/** Made once: where they are needed most there is no time for the trace of a stack. */
const failures: Failure[] = [];

export interface Overload {
  /**
   * Answers service_unavailable where a call would only wait, with a Retry-After that is longer the more connections are unread
   * because they were told so. Answers whether it has.
   */
  sheds(bucket: RateLimitBucket, reply: FastifyReply): boolean;
  /** From now on every connection is listened to. */
  stop(): void;
}

/** Of one gateway. So many connections, `perSecond`, are told one and the same Retry-After. */
export function createOverload(
  admission: Pick<Admission, "isOverloaded">,
  turns: Pick<ConnectionTurns, "isLate" | "stop">,
  perSecond = refusalsPerSecond,
): Overload {
  /** Those that were told and are not listened to. */
  const told = new Set<Socket>();
  /** Calls that were let through, for which nobody has been told yet. */
  let served = servedAtMost;
  let isStopped = false;

  function listenAgain(socket: Socket): void {
    if (told.delete(socket)) listenTo(socket);
  }

  /** Of a client that has gone meanwhile nothing is heard before either. */
  function leaveUntil(at: number, socket: Socket): void {
    if (isStopped) {
      listenTo(socket);
    } else if (!socket.destroyed) {
      stopListening(socket);
      told.add(socket);
      setTimeout(listenAgain, Math.max(0, at - performance.now()), socket).unref();
    }
  }

  return {
    sheds(bucket, reply) {
      const isLate = served >= servedForEachTold && turns.isLate();
      if (!isLate && !admission.isOverloaded(bucket)) {
        served = Math.min(served + 1, servedAtMost);
        return false;
      }
      served = Math.max(served - servedForEachTold, 0);
      const { raw: request } = reply.request;
      const { socket } = request;
      const seconds = 1 + Math.floor(told.size / perSecond);
      // Where so many are unread already, it is to come on another connection.
      if (seconds > longestSeconds) reply.raw.shouldKeepAlive = false;
      const retryAfterSeconds = Math.min(seconds, longestSeconds);
      failures[retryAfterSeconds] ??= new Failure("service_unavailable", { retryAfterSeconds });
      refuse(reply, failures[retryAfterSeconds]);
      if (isStopped || !reply.raw.shouldKeepAlive) return true;
      const at = performance.now() + retryAfterSeconds * 1_000;
      const isFirst = !isUnheard(socket);
      if (isFirst) leaveUnheard(socket);
      const leave = () => {
        if (isFirst) leaveUntil(at, socket);
        // Behind a request that was refused, or whose connection waits for its turn.
        else if (isUnheard(socket)) stopListening(socket);
      };
      // Not before all of the request was read: Node begins to read again for the rest of it.
      if (request.closed) leave();
      else request.once("close", leave);
      return true;
    },
    stop() {
      isStopped = true;
      for (const socket of told) listenAgain(socket);
      turns.stop();
    },
  };
}
