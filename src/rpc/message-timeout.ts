/** Requests with a single message: the message must arrive in time, or the call is refused. */

import { getEventListeners } from "node:events";
import http2, { type Http2ServerRequest, type Http2Session, type ServerHttp2Stream } from "node:http2";
import { Code, ConnectError, createContextKey } from "@connectrpc/connect";
import type { UniversalHandler } from "@connectrpc/connect/protocol";
import { around, bytesOf } from "./handlers.ts";
import { incompleteMessage, toConnectError } from "./message-errors.ts";
import { isOver } from "./stream-scheduling.ts";

/** The gateway's timeout for a request. */
const wholeWithinMs = 10_000;

/** Aborted with the refusal when the message is overdue; undefined for a request that streams messages. Set by the server. */
export const messageTimeoutKey = createContextKey<AbortSignal | undefined>(undefined, {
  description: "whether the message is overdue",
});

const signals = new WeakMap<Http2ServerRequest, AbortSignal>();

export const messageTimeoutSignal = (request: Http2ServerRequest) => signals.get(request);

/**
 * Limits the time for the message to arrive: sent in part, it would hold its stream for ever. Once the call is refused,
 * the stream ends, even if its client has not ended its side. If nobody reads the message, the stream is closed without a
 * refusal. If the call's own deadline passes before anybody reads the message, the call is refused as soon as somebody
 * does.
 */
export function startMessageTimeout(request: Http2ServerRequest, timeoutMs: number | undefined): void {
  const { stream } = request;
  const overdue = new AbortController();
  signals.set(request, overdue.signal);

  function refuse(refusal: ConnectError): void {
    // Node sends the frames between this turn of the event loop and the one after the next.
    stream.once("wantTrailers", () => setImmediate(() => setImmediate(endWhenSent, stream)));
    overdue.abort(refusal);
  }

  function end(): void {
    const isRead = getEventListeners(overdue.signal, "abort").length > 0;
    if (!isRead) stream.close(http2.constants.NGHTTP2_CANCEL);
    else refuse(toConnectError(incompleteMessage()));
  }

  const timer =
    timeoutMs !== undefined && timeoutMs < wholeWithinMs
      ? setTimeout(
          () => refuse(new ConnectError("the deadline has passed", Code.DeadlineExceeded)),
          timeoutMs,
        )
      : setTimeout(end, wholeWithinMs);
  const arrived = () => clearTimeout(timer);
  request.once("end", arrived).once("close", arrived);
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
  if (session === undefined) return;
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

/** Wraps a handler: the request's body ends with the refusal if the rest of it is overdue. */
export function withMessageTimeout(handler: UniversalHandler): UniversalHandler {
  return around(handler, (request) => {
    const body = bytesOf(request);
    const overdue = request.contextValues?.get(messageTimeoutKey);
    if (overdue === undefined || body === undefined) return handler(request);
    return handler({ ...request, body: untilOverdue(body, overdue) });
  });
}

function untilOverdue(body: AsyncIterable<Uint8Array>, overdue: AbortSignal): AsyncIterable<Uint8Array> {
  return {
    [Symbol.asyncIterator]() {
      const chunks = body[Symbol.asyncIterator]();
      const tooLate = new Promise<never>((_, reject) => {
        const refuse = () => reject(overdue.reason);
        if (overdue.aborted) refuse();
        else overdue.addEventListener("abort", refuse, { once: true });
      });
      // It may never be awaited, and would then count as an unhandled rejection.
      tooLate.catch(() => {});
      return {
        next: () => Promise.race([chunks.next(), tooLate]),
        return: async () => {
          // No more data arrives: `return` would wait for the stream's end, and the refusal would wait for `return`.
          if (overdue.aborted) void chunks.return?.();
          else await chunks.return?.();
          return { done: true, value: undefined };
        },
      };
    },
  };
}
