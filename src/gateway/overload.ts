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

/** Made once: where they are needed most there is no time for the trace of a stack. */
const failures: Failure[] = [];

export interface Overload {
  /**
   * Answers service_unavailable where a call would only wait, with a Retry-After that is longer the more connections were told
   * so and have not come again yet. Answers whether it has.
   */
  sheds(bucket: RateLimitBucket, reply: FastifyReply): boolean;
  /** From now on every connection is listened to. */
  stop(): void;
}

/** Of one gateway. */
export function createOverload(admission: Admission, turns: ConnectionTurns): Overload {
  /** Those that were told and have not come again yet. */
  const told = new Set<Socket>();
  let isStopped = false;

  function listenAgain(socket: Socket): void {
    if (told.delete(socket)) listenTo(socket);
  }

  function leaveFor(seconds: number, { raw: request }: FastifyReply["request"]): void {
    const { socket } = request;
    if (isStopped || isUnheard(socket)) return;
    leaveUnheard(socket);
    told.add(socket);
    const leave = () => {
      if (!told.has(socket)) return;
      stopListening(socket);
      setTimeout(listenAgain, seconds * 1_000, socket).unref();
    };
    // Not before all of the request was read: Node would begin to read again for the rest of it.
    if (request.closed) leave();
    else request.once("close", leave);
  }

  return {
    sheds(bucket, reply) {
      if (!turns.isLate() && !admission.isOverloaded(bucket)) return false;
      const seconds = 1 + Math.floor(told.size / refusalsPerSecond);
      failures[seconds] ??= new Failure("service_unavailable", { retryAfterSeconds: seconds });
      refuse(reply, failures[seconds]);
      leaveFor(seconds, reply.request);
      return true;
    },
    stop() {
      isStopped = true;
      for (const socket of told) listenAgain(socket);
      turns.stop();
    },
  };
}
