/**
 * Reads connections in turns, if they send a lot. In a turn of the event loop, Node reads and parses what has arrived on all
 * connections: that is seconds of work if a few dozen clients open a thousand streams each at once, or send their data in frames of a
 * byte.
 */

import type { Http2Server, Http2Session, ServerHttp2Stream } from "node:http2";

/** How long Node takes for what a client sends: for a stream, before anything is done with it, and for a frame of its data. */
const streamMicroseconds = 60;
const frameMicroseconds = 0.3;
/**
 * Once this was spent in a turn on all connections without a valid credential so far, or on all others, no other of theirs is read in
 * it. Of the one in hand, the rest of up to 64 KiB still is: the time for a thousand streams at most, or for six thousand frames.
 */
const spentOnStrangersMicroseconds = 3_000;
const spentOnKnownMicroseconds = 20_000;

/** What Node reads a socket by. HTTP/2 takes it over, and takes no notice of the socket's own `pause`. */
interface Handle {
  readStop(): void;
  readStart(): void;
}

export interface ReadingTurns {
  /** To be called once, before the server listens. */
  watch(server: Http2Server): void;
  /** Reports that the connection has presented a valid credential: it no longer waits for those that have not. */
  admit(session: Http2Session): void;
}

export function createReadingTurns(): ReadingTurns {
  const strangers = new Group(spentOnStrangersMicroseconds);
  const known = new Group(spentOnKnownMicroseconds);
  const groups = new WeakMap<Http2Session, Group>();

  return {
    watch(server) {
      server.on("session", (session) => {
        const { _handle: handle } = session.socket as unknown as { readonly _handle: Handle };
        strangers.read.set(session, handle);
        groups.set(session, strangers);
        session.once("close", () => groups.get(session)?.remove(session));
      });
      server.on("stream", (stream: ServerHttp2Stream) => {
        const { session } = stream;
        if (session === undefined) return;
        groups.get(session)?.spend(streamMicroseconds);
        const push = stream.push.bind(stream);
        stream.push = (...given) => {
          groups.get(session)?.spend(frameMicroseconds);
          return push(...given);
        };
      });
    },

    admit(session) {
      const stopped = strangers.stopped.get(session);
      const handle = stopped ?? strangers.read.get(session);
      if (handle === undefined) return;
      strangers.remove(session);
      known.read.set(session, handle);
      groups.set(session, known);
      stopped?.readStart();
    },
  };
}

/** Connections that take turns. */
class Group {
  readonly read = new Map<Http2Session, Handle>();
  /** In the order of their turns. */
  readonly stopped = new Map<Http2Session, Handle>();
  readonly #mostMicroseconds: number;
  #spent = 0;
  #readAtOnce = 1;

  constructor(mostMicroseconds: number) {
    this.#mostMicroseconds = mostMicroseconds;
  }

  remove(session: Http2Session): void {
    this.read.delete(session);
    this.stopped.delete(session);
  }

  spend(microseconds: number): void {
    if (this.#spent === 0 && this.stopped.size === 0) setImmediate(() => this.#nextTurn());
    this.#spent += microseconds;
    if (this.#spent < this.#mostMicroseconds || this.read.size === 0) return;
    for (const [session, handle] of this.read) {
      handle.readStop();
      this.stopped.set(session, handle);
    }
    this.read.clear();
  }

  /** Most connections have nothing to read: twice as many as in the turn before are read again, until that was too much. */
  #nextTurn(): void {
    this.#readAtOnce = this.#spent < this.#mostMicroseconds ? 2 * this.#readAtOnce : 1;
    this.#spent = 0;
    let left = this.#readAtOnce;
    for (const [session, handle] of this.stopped) {
      if (left-- <= 0) break;
      this.stopped.delete(session);
      this.read.set(session, handle);
      handle.readStart();
    }
    if (this.stopped.size > 0) setImmediate(() => this.#nextTurn());
    else this.#readAtOnce = 1;
  }
}
