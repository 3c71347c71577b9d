/** Requests that are answered before all of them has come. */

import http2, { type Http2ServerRequest, type ServerHttp2Stream } from "node:http2";

/** What is on its way when the answer goes out has come by then. */
const discardedForMs = 10_000;

/** Where its reader gives it up, which is what closes a request before its stream is over. */
export function discardGivenUp(request: Http2ServerRequest): void {
  request.once("close", () => discardRest(request.stream));
}

/**
 * Nobody reads the rest: it would fill the stream's window and stay, and keep stream and connection from ever ending. It is
 * discarded, which lets a client of any kind take its answer; a reset at once could overtake it.
 */
export function discardRest(stream: ServerHttp2Stream): void {
  if (stream.readableEnded || stream.closed || stream.destroyed) return;
  // The request's own listener pauses for what it has no place for any more.
  stream.removeAllListeners("data").resume();
  const timer = setTimeout(() => stream.close(http2.constants.NGHTTP2_NO_ERROR), discardedForMs);
  stream.once("end", () => clearTimeout(timer)).once("close", () => clearTimeout(timer));
}
