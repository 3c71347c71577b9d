/** Requests that are answered before all of them has come. */

import type { Http2ServerRequest } from "node:http2";

/**
 * Where its reader gives a request up, nobody reads the rest: it would fill the stream's window and stay, and keep stream and
 * connection from ever ending. It is discarded, which lets a client of any kind take its answer (a reset at once could overtake
 * that), for as long as an answer may wait to be taken.
 */
export function discardRest(request: Http2ServerRequest): void {
  const { stream } = request;
  // Before its stream is over a request closes where its reader has left it.
  request.once("close", () => {
    // The request's own listener pauses for what it has no place for any more.
    if (!stream.readableEnded && !stream.destroyed) stream.removeAllListeners("data").resume();
  });
}
