/** Messages that are alone in their request: each is to come in time, or its call is refused. */

import { getEventListeners } from "node:events";
import http2, { type Http2ServerRequest, type Http2Session, type ServerHttp2Stream } from "node:http2";
import { Code, ConnectError, createContextKey } from "@connectrpc/connect";
import type { UniversalHandler } from "@connectrpc/connect/protocol";
import { around, bytesOf } from "./handlers.ts";
import { carried, notWhole } from "./unread.ts";

/** As long as the gateway gives a request. */
const wholeWithinMs = 10_000;

/** Aborted with the refusal when its message has not come; undefined where a request is a stream of them. Put beside it by the server. */
export const overdueKey = createContextKey<AbortSignal | undefined>(undefined, {
  description: "whether the message is overdue",
});

const signals = new WeakMap<Http2ServerRequest, AbortSignal>();

export const overdueSignal = (request: Http2ServerRequest) => signals.get(request);

/**
 * Sent by halves a message would hold its stream for ever. Once the call is refused the stream ends, though its client has not
 * ended its side; where an answer has begun, or nobody is reading, there is nothing to wait for. A deadline of the call's own may
 * pass before anybody reads: then it is refused once somebody does.
 */
export function expectWhole(request: Http2ServerRequest, timeoutMs: number | undefined): void {
  const { stream } = request;
  const overdue = new AbortController();
  signals.set(request, overdue.signal);

  function refuse(refusal: ConnectError): void {
    // Frames leave between this turn of the event loop and the one after the next.
    stream.once("wantTrailers", () => setImmediate(() => setImmediate(endWhenSent, stream)));
    overdue.abort(refusal);
  }

  function end(): void {
    const isRead = getEventListeners(overdue.signal, "abort").length > 0;
    if (stream.headersSent || !isRead) stream.close(http2.constants.NGHTTP2_CANCEL);
    else refuse(carried(notWhole()));
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

/** Between two looks at whether a connection's frames have left. */
const lookAgainMs = 50;

/** By connection: whose refusals are on their way. */
const leaving = new WeakMap<Http2Session, Set<ServerHttp2Stream>>();

/**
 * A reset would overtake the refusal, so it waits until nothing of the connection is still to leave. All that wait then end together:
 * the reset of one has to leave, too.
 */
function endWhenSent(stream: ServerHttp2Stream): void {
  const { session } = stream;
  if (session === undefined) return;
  const waiting = leaving.get(session) ?? new Set();
  waiting.add(stream);
  if (leaving.has(session)) return;
  leaving.set(session, waiting);
  setImmediate(endAllSent, session, waiting);
}

/** One whose client takes nothing has what any answer has, and is closed then. */
function endAllSent(session: Http2Session, waiting: Set<ServerHttp2Stream>): void {
  const open = [...waiting].filter((stream) => !stream.closed && !stream.destroyed);
  if (open.length > 0 && session.state.outboundQueueSize !== 0) {
    setTimeout(endAllSent, lookAgainMs, session, waiting);
    return;
  }
  leaving.delete(session);
  for (const stream of open) stream.close(http2.constants.NGHTTP2_NO_ERROR);
}

/** The same handler. What it reads ends with a refusal where the rest is overdue. */
export function refusingHalves(handler: UniversalHandler): UniversalHandler {
  return around(handler, (request) => {
    const body = bytesOf(request);
    const overdue = request.contextValues?.get(overdueKey);
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
      // It may never be waited for.
      tooLate.catch(() => {});
      return {
        next: () => Promise.race([chunks.next(), tooLate]),
        return: async () => {
          // Nothing more of it comes, so it would wait for the stream's end, and the refusal for it.
          if (overdue.aborted) void chunks.return?.();
          else await chunks.return?.();
          return { done: true, value: undefined };
        },
      };
    },
  };
}
