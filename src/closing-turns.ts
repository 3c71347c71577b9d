/** Reports the ends of HTTP/1.1 connections on which requests were pipelined in turns: of which there may be thousands at once. */

import type { Duplex } from "node:stream";
import { inTurnsOf } from "./turns-of-work.ts";

/** How long it may take in a turn of the event loop before everything else gets its turn. Of one connection, it is not interrupted. */
const mostInTurnMs = 5;

const inTurns = inTurnsOf(mostInTurnMs);
const closesInTurns = new WeakSet<Duplex>();

/**
 * Node ends each request of a connection that closes, of which there may be thousands, with an error. If a client leaves with a
 * hundred such connections, everybody else would wait for half a second.
 */
export function closeInTurns(socket: Duplex): void {
  if (closesInTurns.has(socket)) return;
  closesInTurns.add(socket);
  const emit = socket.emit.bind(socket) as (event: string | symbol, ...given: unknown[]) => boolean;
  Object.assign(socket, {
    emit(event: string | symbol, ...given: unknown[]) {
      if (event !== "close") return emit(event, ...given);
      inTurns(() => withoutStackTraces(() => emit(event, ...given)));
      return true;
    },
  });
}

/** Most of the time would be taken by the errors' stack traces, which nobody reads. */
function withoutStackTraces(report: () => void): void {
  const { stackTraceLimit } = Error;
  Error.stackTraceLimit = 0;
  try {
    report();
  } finally {
    Error.stackTraceLimit = stackTraceLimit;
  }
}
