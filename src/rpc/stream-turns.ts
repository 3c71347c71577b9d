/**
 * Streams are taken up in turns. What a connection opens in one go would otherwise be worked through in one go, with whatever stands
 * before a service, and nobody else answered meanwhile: a thousand streams a connection, each reset as soon as it was opened.
 */

import http2, {
  type Http2Server,
  type Http2ServerRequest,
  type Http2Session,
  type ServerHttp2Stream,
} from "node:http2";

/** Of connections on which no credential was good yet, before the event loop comes to everybody else. */
const takenInTurn = 32;
/** Of such connections together. What comes beyond is refused so that its client may try again. */
const mostWaiting = 5_000;
/** Streams of such a connection that were reset before their turn came: so many at once, and so many a second. */
const mostResets = 200;
const resetsPerSecond = 20;
/** So often what waits is looked through for what was reset meanwhile. */
const lookedThroughEach = 100;

interface Arrival {
  readonly stream: ServerHttp2Stream;
  takeUp(): void;
}

/**
 * Holds the server's `request` event back until the stream's turn, and for good where it was reset before: not `stream`, after
 * which Node hears what becomes of one. The streams of a connection that `isKnown` wait for no turn; the others take turns, a
 * stream a connection. Whoever goes on resetting what it opens loses its connection.
 */
export function takeStreamsInTurn(server: Http2Server, isKnown: (session: Http2Session) => boolean): void {
  /** Of connections with something waiting, in the order of their turns. */
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

  function arrive(arrival: Arrival): void {
    const { session } = arrival.stream;
    if (session === undefined || session.destroyed) return;
    if (isKnown(session)) {
      // What has come with it is read first.
      process.nextTick(takeUpUnlessOver, arrival);
      return;
    }
    if (waiting >= mostWaiting) {
      arrival.stream.close(http2.constants.NGHTTP2_REFUSED_STREAM);
      return;
    }
    const queue = queues.get(session) ?? [];
    queues.set(session, queue);
    queue.push(arrival);
    waiting += 1;
    // Amid what a connection has sent in one go, of which the rest is not worked through where that ends the connection.
    if (queue.length % lookedThroughEach === 0) lookThrough(session, queue);
    if (isTurnDue) return;
    isTurnDue = true;
    setImmediate(takeTurn);
  }

  function lookThrough(session: Http2Session, queue: Arrival[]): void {
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
    if (lately <= mostResets || session.destroyed) return;
    // Without an error the reason would be none.
    session.destroy(new Error("streams are reset unheard"), http2.constants.NGHTTP2_ENHANCE_YOUR_CALM);
  }

  function takeTurn(): void {
    for (let left = takenInTurn; left > 0 && queues.size > 0; ) {
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

/** Whether nothing more comes of it, or can be sent on it. */
export const isOver = (stream: Pick<ServerHttp2Stream, "closed" | "destroyed">) =>
  stream.closed || stream.destroyed;

function takeUpUnlessOver({ stream, takeUp }: Arrival): void {
  if (!isOver(stream)) takeUp();
}
