/**
 * Starts new streams in turns. Without this, all streams that a connection opens in one write would be processed in one
 * go, including everything that runs before a service, and nobody else would be served meanwhile: for example a
 * thousand streams per connection, each reset as soon as it was opened.
 */

import http2, {
  type Http2Server,
  type Http2ServerRequest,
  type Http2Session,
  type ServerHttp2Stream,
} from "node:http2";
import type { NoteRefusedStream } from "./transport-refusals.ts";

/** Streams that are started per turn of the event loop, on connections without a valid credential so far. */
const takenInTurn = 32;
/** Streams that may wait on all such connections together. Further ones are refused with a code that lets clients retry. */
const mostWaiting = 5_000;
/** And up to so many more, one on each connection that has none waiting: others' streams do not take the room of a client's first call. */
const mostFirst = 1_000;
/** Resets of streams before their turn that such a connection may make: in a burst, and per second. */
const mostResets = 200;
const resetsPerSecond = 20;
/** A connection's queue is searched for reset streams each time this many more are waiting. */
const searchEvery = 100;
/** Streams that are started per turn of the event loop on each connection with a valid credential, which wait for no other's. */
const takenOfKnown = 64;

interface Arrival {
  readonly stream: ServerHttp2Stream;
  takeUp(): void;
}

/**
 * Delays the server's `request` event until the stream's turn, and drops it if the stream was reset before. The
 * `stream` event is not delayed: only after it, Node reports the end of a stream. Streams of connections that are
 * `isKnown` wait only if there are many of one connection; the others take turns, one stream per connection. A connection
 * that keeps resetting its streams is destroyed.
 */
export function scheduleStreams(
  server: Http2Server,
  {
    isKnown,
    noteRefused,
  }: { readonly isKnown: (session: Http2Session) => boolean; readonly noteRefused: NoteRefusedStream },
): void {
  /** Of known connections, in this turn of the event loop: how many streams were opened, and which wait for the next. */
  const turns = new Map<Http2Session, { opened: number; readonly waiting: Arrival[] }>();
  /** Queues of the connections that have streams waiting, in the order of their turns. */
  const queues = new Map<Http2Session, Arrival[]>();
  const resets = new WeakMap<Http2Session, { count: number; at: number }>();
  let waiting = 0;
  let isTurnDue = false;

  const emit = server.emit.bind(server) as (event: string, ...given: unknown[]) => boolean;
  server.emit = ((event: string, ...given: unknown[]) => {
    if (event !== "request") return emit(event, ...given);
    const [{ stream }] = given as [Http2ServerRequest];
    arrive({ stream, takeUp: () => emit(event, ...given) });
    return true;
  }) as typeof server.emit;

  server.on("session", (session) => {
    session.prependListener("stream", (stream) => {
      // It was reset in the same piece that opened it, and no longer knows its session when it arrives.
      if (stream.destroyed && !session.destroyed && !isKnown(session)) noteResets(session, 1);
    });
  });

  function arrive(arrival: Arrival): void {
    const { session } = arrival.stream;
    if (session === undefined || session.destroyed) return;
    if (isKnown(session)) {
      arriveOnKnown(session, arrival);
      return;
    }
    const queue = queues.get(session) ?? [];
    if (waiting >= (queue.length === 0 ? mostWaiting + mostFirst : mostWaiting)) {
      noteRefused("waiting", "in_all");
      arrival.stream.close(http2.constants.NGHTTP2_REFUSED_STREAM);
      return;
    }
    queues.set(session, queue);
    queue.push(arrival);
    waiting += 1;
    // Checked while the connection's data is still being parsed: if this destroys the connection, the rest is not
    // processed.
    if (queue.length % searchEvery === 0) dropReset(session, queue);
    if (isTurnDue) return;
    isTurnDue = true;
    setImmediate(takeTurn);
  }

  function arriveOnKnown(session: Http2Session, arrival: Arrival): void {
    let turn = turns.get(session);
    if (turn === undefined) {
      if (turns.size === 0) setImmediate(nextTurn);
      turn = { opened: 0, waiting: [] };
      turns.set(session, turn);
    }
    turn.opened += 1;
    // The data that arrived with it is parsed first.
    if (turn.opened <= takenOfKnown) process.nextTick(takeUpUnlessOver, arrival);
    else turn.waiting.push(arrival);
  }

  function nextTurn(): void {
    for (const [session, { waiting }] of turns) {
      if (waiting.length === 0) turns.delete(session);
      else for (const arrival of waiting.splice(0, takenOfKnown)) takeUpUnlessOver(arrival);
    }
    if (turns.size > 0) setImmediate(nextTurn);
  }

  function dropReset(session: Http2Session, queue: Arrival[]): void {
    const left = queue.filter(({ stream }) => !isOver(stream));
    waiting -= queue.length - left.length;
    queues.set(session, left);
    noteResets(session, queue.length - left.length);
  }

  function noteResets(session: Http2Session, more: number): void {
    const now = performance.now();
    const { count, at } = resets.get(session) ?? { count: 0, at: now };
    const lately = Math.max(0, count - ((now - at) / 1_000) * resetsPerSecond) + more;
    resets.set(session, { count: lately, at: now });
    if (lately <= mostResets) return;
    // Without an error, Node would ignore the code.
    session.destroy(
      new Error("too many streams were reset before their turn"),
      http2.constants.NGHTTP2_ENHANCE_YOUR_CALM,
    );
  }

  function takeTurn(): void {
    for (let left = takenInTurn; left > 0; ) {
      const [next] = queues;
      if (next === undefined) break;
      const [session, queue] = next;
      queues.delete(session);
      const arrival = session.destroyed ? undefined : queue.shift();
      if (arrival === undefined) {
        waiting -= queue.length;
        continue;
      }
      waiting -= 1;
      if (queue.length > 0) queues.set(session, queue);
      if (isOver(arrival.stream)) {
        noteResets(session, 1);
        continue;
      }
      left -= 1;
      arrival.takeUp();
    }
    isTurnDue = queues.size > 0;
    if (isTurnDue) setImmediate(takeTurn);
  }
}

/** Whether nothing more can arrive or be sent on the stream. */
export const isOver = (stream: Pick<ServerHttp2Stream, "closed" | "destroyed">) =>
  stream.closed || stream.destroyed;

function takeUpUnlessOver({ stream, takeUp }: Arrival): void {
  if (!isOver(stream)) takeUp();
}
