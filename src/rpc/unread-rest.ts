/** Discards the rest of requests that are answered before they have arrived completely. */

import type { Http2ServerRequest } from "node:http2";

/**
 * If a handler stops reading a request, the rest would fill the stream's flow-control window and stay there, so that
 * neither stream nor connection could end. The rest is read and discarded, for as long as a response may wait to be
 * taken, so that any kind of client receives its response: an immediate reset could overtake it.
 */
export function discardRest(request: Http2ServerRequest): void {
  const { stream } = request;
  // A request emits `close` before its stream has ended if its reader stops early.
  request.once("close", () => {
    // The request's own listener pauses the stream once the request takes no more data.
    if (!stream.readableEnded && !stream.destroyed) stream.removeAllListeners("data").resume();
  });
}
