/**
 * How the gateway says that it has too much to do. Saying so takes time, too: a connection that was told is not listened to
 * before it may come again, so that whoever asks on regardless takes nothing from those that are served.
 */

import type { FastifyReply } from "fastify";
import { Failure } from "../failures.ts";
import { refuse } from "./refusal.ts";

/** Refusals take up to 0.1 ms each: these leave a process most of its time. */
const refusalsPerSecond = 4_000;

/** Made once: where they are needed most there is no time for the trace of a stack. */
const failures: Failure[] = [];

const unheard = new WeakSet<object>();
let unheardCount = 0;

/** Whether a connection is not listened to because it was refused. */
export const isUnheard = (socket: object): boolean => unheard.has(socket);

/** Answers service_unavailable, with a Retry-After that is longer the more connections were told so and have not come again yet. */
export function refuseOverloaded(reply: FastifyReply): void {
  const seconds = 1 + Math.floor(unheardCount / refusalsPerSecond);
  failures[seconds] ??= new Failure("service_unavailable", { retryAfterSeconds: seconds });
  refuse(reply, failures[seconds]);
  const request = reply.request.raw;
  const { socket } = request;
  if (unheard.has(socket)) return;
  unheard.add(socket);
  unheardCount++;
  const listenAgain = () => {
    unheard.delete(socket);
    unheardCount--;
    if (!socket.destroyed) socket.resume();
  };
  const stopListening = () => {
    socket.pause();
    setTimeout(listenAgain, seconds * 1_000).unref();
  };
  // Not before all of the request was read: Node would begin to read again for the rest of it.
  if (request.closed) stopListening();
  else request.once("close", stopListening);
}
