/**
 * Reads the connections of the gRPC port in turns, if they send a lot. In a turn of the event loop, Node reads and parses what has arrived
 * on all of them, which cannot be interrupted.
 */

import type { Http2Session } from "node:http2";
import { type Handle, readOn, stopReading } from "../stopped-handles.ts";

/** Of what may be spent in a turn: a connection that takes as much by itself is no longer read with the others. */
const largePart = 0.25;
/** For how long it has to send less until it is. */
const calmMs = 5_000;

/**
 * Connections that take turns. Those that send a lot are read apart from the others, and as much may be spent on either: however many
 * of them there are, who sends little does not wait for them.
 */
export class SessionTurns {
  readonly #small: TurnsOfEqual;
  readonly #large: TurnsOfEqual;
  /** When those that send a lot last did, in milliseconds. */
  readonly #largeAt = new Map<Http2Session, number>();
  readonly #largeMicroseconds: number;
  /** Of what connection something was read last in this turn, and what was spent on it: Node takes all of one, then of the next. */
  #last: Http2Session | undefined;
  #spentOnLast = 0;
  #isLastNew = false;

  /** `mostMicroseconds` may be spent in a turn. */
  constructor(mostMicroseconds: number) {
    this.#small = new TurnsOfEqual(mostMicroseconds);
    this.#large = new TurnsOfEqual(mostMicroseconds);
    this.#largeMicroseconds = largePart * mostMicroseconds;
  }

  add(session: Http2Session): void {
    const { _handle: handle } = session.socket as unknown as { readonly _handle: Handle | null };
    // It may be closed already.
    if (handle !== null) this.#small.add(session, handle);
  }

  remove(session: Http2Session): void {
    this.#turnsOf(session).remove(session);
    this.#largeAt.delete(session);
  }

  /** Its turns are those of `others` from now on, and it is read. */
  moveTo(others: SessionTurns, session: Http2Session): void {
    this.#turnsOf(session).moveTo(others.#small, session);
    this.#largeAt.delete(session);
  }

  /** Reports how long Node has taken for something that was read of the connection. */
  spend(session: Http2Session, microseconds: number): void {
    if (session !== this.#last) {
      if (this.#last === undefined) setImmediate(() => this.#beginRun(undefined));
      this.#beginRun(session);
    }
    const before = this.#spentOnLast;
    this.#spentOnLast += microseconds;
    if (before < this.#largeMicroseconds && this.#spentOnLast >= this.#largeMicroseconds) {
      this.#isLastNew = this.#small.moveTo(this.#large, session);
      if (this.#isLastNew || this.#largeAt.has(session)) this.#largeAt.set(session, performance.now());
    }
    this.#turnsOf(session).spend(session, microseconds);
    // It was still read with the others.
    if (this.#isLastNew) this.#small.spend(session, microseconds);
  }

  #beginRun(session: Http2Session | undefined): void {
    const largeAt = this.#last && this.#largeAt.get(this.#last);
    if (this.#last && largeAt !== undefined && performance.now() - largeAt > calmMs)
      this.moveTo(this, this.#last);
    this.#last = session;
    this.#spentOnLast = 0;
    this.#isLastNew = false;
  }

  #turnsOf(session: Http2Session): TurnsOfEqual {
    return this.#largeAt.has(session) ? this.#large : this.#small;
  }
}

/** Once as much as it may was spent in a turn, no other one of the connections is read in it. */
class TurnsOfEqual {
  readonly #mostMicroseconds: number;
  readonly #read = new Map<Http2Session, Handle>();
  /** In the order of their turns. */
  readonly #stopped = new Map<Http2Session, Handle>();
  #spent = 0;
  #readAtOnce = 1;
  #isTurnDue = false;

  constructor(mostMicroseconds: number) {
    this.#mostMicroseconds = mostMicroseconds;
  }

  add(session: Http2Session, handle: Handle): void {
    this.#read.set(session, handle);
  }

  remove(session: Http2Session): void {
    this.#read.delete(session);
    this.#stopped.delete(session);
  }

  /** Whether it was one of these: a closed connection is none. */
  moveTo(others: TurnsOfEqual, session: Http2Session): boolean {
    const stopped = this.#stopped.get(session);
    const handle = stopped ?? this.#read.get(session);
    if (handle === undefined) return false;
    this.remove(session);
    others.#read.set(session, handle);
    if (stopped !== undefined) readOn(stopped, { afterWrites: true });
    return true;
  }

  spend(session: Http2Session, microseconds: number): void {
    this.#awaitTurn();
    this.#spent += microseconds;
    if (this.#spent < this.#mostMicroseconds || this.#read.size === 0) return;
    // Last: those that were to be read after it would otherwise be behind it again at their next turn, and never be read.
    const spender = this.#read.get(session);
    if (spender !== undefined) {
      this.#read.delete(session);
      this.#read.set(session, spender);
    }
    for (const [session, handle] of this.#read) {
      stopReading(handle);
      this.#stopped.set(session, handle);
    }
    this.#read.clear();
  }

  #awaitTurn(): void {
    if (this.#isTurnDue) return;
    this.#isTurnDue = true;
    setImmediate(() => this.#nextTurn());
  }

  /** Most connections have nothing to read: twice as many as in the turn before are read again, until that was too much. */
  #nextTurn(): void {
    this.#isTurnDue = false;
    this.#readAtOnce = this.#spent < this.#mostMicroseconds ? 2 * this.#readAtOnce : 1;
    this.#spent = 0;
    let left = this.#readAtOnce;
    for (const [session, handle] of this.#stopped) {
      if (left-- <= 0) break;
      this.#stopped.delete(session);
      this.#read.set(session, handle);
      readOn(handle, { afterWrites: true });
    }
    if (this.#stopped.size > 0) this.#awaitTurn();
    // Node has started to read those again to which a write was done meanwhile. Nothing of them has been read yet.
    for (const handle of this.#stopped.values()) handle.readStop();
  }
}
