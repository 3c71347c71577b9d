/**
 * Ends the streams of refused calls although their clients have not ended their side: once the refusal is complete, the server
 * asks the client to send no more of the request (RFC 9113, 8.1), as other gRPC servers do.
 */

import http2, { type Http2Session, type ServerHttp2Stream } from "node:http2";
import { isOver } from "./stream-scheduling.ts";

/** Ends the stream once the trailers that it still waits for have been sent. */
export function endAfterTrailers(stream: ServerHttp2Stream): void {
  stream.once("wantTrailers", () => endAfterAnswer(stream));
}

/** Ends the stream once its response, which is complete, has been sent. */
export function endAfterAnswer(stream: ServerHttp2Stream): void {
  // Node sends the frames between this turn of the event loop and the one after the next.
  setImmediate(() => setImmediate(endWhenSent, stream));
}

/** Pause between two checks whether a connection's frames have been sent. */
const checkEveryMs = 50;

/** Streams whose refusals are being sent, by connection. */
const refusing = new WeakMap<Http2Session, Set<ServerHttp2Stream>>();

/**
 * A reset would overtake the refusal, so it waits until the connection has nothing left to send. All waiting streams
 * are then closed together, since the reset of one has to be sent, too.
 */
function endWhenSent(stream: ServerHttp2Stream): void {
  const { session } = stream;
  if (session === undefined || isOver(stream)) return;
  const waiting = refusing.get(session) ?? new Set();
  waiting.add(stream);
  if (refusing.has(session)) return;
  refusing.set(session, waiting);
  setImmediate(endAllSent, session, waiting);
}

/** The stream of a client that takes nothing is closed by the time limit of any response. */
function endAllSent(session: Http2Session, waiting: Set<ServerHttp2Stream>): void {
  const open = [...waiting].filter((stream) => !isOver(stream));
  if (open.length > 0 && session.state.outboundQueueSize !== 0) {
    setTimeout(endAllSent, checkEveryMs, session, waiting);
    return;
  }
  refusing.delete(session);
  for (const stream of open) stream.close(http2.constants.NGHTTP2_NO_ERROR);
}
