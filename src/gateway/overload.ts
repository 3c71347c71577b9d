/**
 * How the gateway says that it has too much to do. Saying so takes time, too: a connection that was told is not listened to
 * before it may come again, so that whoever asks on regardless takes nothing from those that are served.
 */

import type { FastifyReply } from "fastify";
import { Failure } from "../failures.ts";
import { isUnheard, leaveUnheard, listenTo, stopListening } from "./listening.ts";
import { refuse } from "./refusal.ts";

/** Refusals take up to 0.1 ms each: these leave a process most of its time. */
const refusalsPerSecond = 2_000;

/** Made once: where they are needed most there is no time for the trace of a stack. */
const failures: Failure[] = [];

/** Connections that were refused and have not come again yet. */
let refusedCount = 0;

/** Answers service_unavailable, with a Retry-After that is longer the more connections were told so and have not come again yet. */
export function refuseOverloaded(reply: FastifyReply): void {
  const seconds = 1 + Math.floor(refusedCount / refusalsPerSecond);
  failures[seconds] ??= new Failure("service_unavailable", { retryAfterSeconds: seconds });
  refuse(reply, failures[seconds]);
  const request = reply.request.raw;
  const { socket } = request;
  if (isUnheard(socket)) return;
  leaveUnheard(socket);
  refusedCount++;
  const listenAgain = () => {
    refusedCount--;
    listenTo(socket);
  };
  const leave = () => {
    stopListening(socket);
    setTimeout(listenAgain, seconds * 1_000).unref();
  };
  // Not before all of the request was read: Node would begin to read again for the rest of it.
  if (request.closed) leave();
  else request.once("close", leave);
}
