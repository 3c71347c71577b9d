/** Reports the ends of HTTP/1.1 connections on which requests were pipelined in turns: of which there may be thousands at once. */

import type { Duplex } from "node:stream";

/** How long it may take in a turn of the event loop before everything else gets its turn. Of one connection, it is not interrupted. */
const mostInTurnMs = 5;

/** Of closed connections: what reports their end. */
const closings: (() => void)[] = [];
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
      if (closings.push(() => emit(event, ...given)) === 1) setImmediate(nextClosings);
      return true;
    },
  });
}

/** As many as there is time for: with one in each turn, those of a client that opens more than one in a turn would pile up. */
function nextClosings(): void {
  const { stackTraceLimit } = Error;
  // Most of the time would be taken by the errors' stack traces, which nobody reads.
  Error.stackTraceLimit = 0;
  const endsAt = performance.now() + mostInTurnMs;
  try {
    do closings.shift()?.();
    while (closings.length > 0 && performance.now() < endsAt);
  } finally {
    Error.stackTraceLimit = stackTraceLimit;
    if (closings.length > 0) setImmediate(nextClosings);
  }
}
