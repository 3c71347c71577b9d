/**
 * Reads the connections of a server in turns, if they send a lot. In a turn of the event loop, Node reads and parses what has arrived on
 * all of them, which cannot be interrupted.
 */

import type { Socket } from "node:net";
import { type Handle, readOn, stopReading } from "./stopped-handles.ts";

/** Of what may be spent in a turn: a connection that takes as much by itself is no longer read with the others. */
const largePart = 0.25;
/** For how long it has to send less until it is. */
const calmMs = 5_000;

/**
 * Connections that take turns. Those that send a lot are read apart from the others, and as much may be spent on either: however many
 * of them there are, who sends little does not wait for them.
 */
export class ReadingTurns<Connection extends object> {
  readonly #small: TurnsOfEqual<Connection>;
  readonly #large: TurnsOfEqual<Connection>;
  /** When those that send a lot last did, in milliseconds. */
  readonly #largeAt = new Map<Connection, number>();
  readonly #largeMicroseconds: number;
  /** Of what connection something was read last in this turn, and what was spent on it: Node takes all of one, then of the next. */
  #last: Connection | undefined;
  #spentOnLast = 0;
  #isLastNew = false;

  /**
   * `mostMicroseconds` may be spent in a turn. `afterWrites`: whether a connection is not read while something is written to it, and
   * then again without being told to, as Node does with HTTP/2, so that a client that takes no answers gets no more of them.
   */
  constructor(mostMicroseconds: number, { afterWrites = false } = {}) {
    this.#small = new TurnsOfEqual(mostMicroseconds, afterWrites);
    this.#large = new TurnsOfEqual(mostMicroseconds, afterWrites);
    this.#largeMicroseconds = largePart * mostMicroseconds;
  }

  add(connection: Connection, socket: Socket): void {
    const { _handle: handle } = socket as unknown as { readonly _handle: Handle | null };
    // It may be closed already.
    if (handle !== null) this.#small.add(connection, handle);
  }

  remove(connection: Connection): void {
    this.#turnsOf(connection).remove(connection);
    this.#largeAt.delete(connection);
  }

  /** Its turns are those of `others` from now on, and it is read. */
  moveTo(others: ReadingTurns<Connection>, connection: Connection): void {
    this.#turnsOf(connection).moveTo(others.#small, connection);
    this.#largeAt.delete(connection);
  }

  /** Whether it is not read before its turn. */
  isWaiting(connection: Connection): boolean {
    return this.#turnsOf(connection).isWaiting(connection);
  }

  /** Reports how long Node has taken for something that was read of the connection. */
  spend(connection: Connection, microseconds: number): void {
    if (connection !== this.#last) {
      if (this.#last === undefined) setImmediate(() => this.#beginRun(undefined));
      this.#beginRun(connection);
    }
    const before = this.#spentOnLast;
    this.#spentOnLast += microseconds;
    if (before < this.#largeMicroseconds && this.#spentOnLast >= this.#largeMicroseconds) {
      this.#isLastNew = this.#small.moveTo(this.#large, connection);
      if (this.#isLastNew || this.#largeAt.has(connection)) this.#largeAt.set(connection, performance.now());
    }
    this.#turnsOf(connection).spend(connection, microseconds);
    // It was still read with the others.
    if (this.#isLastNew) this.#small.spend(connection, microseconds);
  }

  #beginRun(connection: Connection | undefined): void {
    const largeAt = this.#last && this.#largeAt.get(this.#last);
    if (this.#last && largeAt !== undefined && performance.now() - largeAt > calmMs)
      this.moveTo(this, this.#last);
    this.#last = connection;
    this.#spentOnLast = 0;
    this.#isLastNew = false;
  }

  #turnsOf(connection: Connection): TurnsOfEqual<Connection> {
    return this.#largeAt.has(connection) ? this.#large : this.#small;
  }
}

/** Once as much as it may was spent in a turn, no other one of the connections is read in it. */
class TurnsOfEqual<Connection extends object> {
  readonly #mostMicroseconds: number;
  readonly #afterWrites: boolean;
  readonly #read = new Map<Connection, Handle>();
  /** In the order of their turns. */
  readonly #stopped = new Map<Connection, Handle>();
  #spent = 0;
  #readAtOnce = 1;
  #isTurnDue = false;

  constructor(mostMicroseconds: number, afterWrites: boolean) {
    this.#mostMicroseconds = mostMicroseconds;
    this.#afterWrites = afterWrites;
  }

  add(connection: Connection, handle: Handle): void {
    this.#read.set(connection, handle);
  }

  remove(connection: Connection): void {
    this.#read.delete(connection);
    this.#stopped.delete(connection);
  }

  /** Whether it was one of these: a closed connection is none. */
  moveTo(others: TurnsOfEqual<Connection>, connection: Connection): boolean {
    const stopped = this.#stopped.get(connection);
    const handle = stopped ?? this.#read.get(connection);
    if (handle === undefined) return false;
    this.remove(connection);
    others.#read.set(connection, handle);
    if (stopped !== undefined) readOn(stopped, { afterWrites: this.#afterWrites });
    return true;
  }

  isWaiting(connection: Connection): boolean {
    return this.#stopped.has(connection);
  }

  spend(connection: Connection, microseconds: number): void {
    this.#awaitTurn();
    this.#spent += microseconds;
    if (this.#spent < this.#mostMicroseconds || this.#read.size === 0) return;
    // Last: those that were to be read after it would otherwise be behind it again at their next turn, and never be read.
    const spender = this.#read.get(connection);
    if (spender !== undefined) {
      this.#read.delete(connection);
      this.#read.set(connection, spender);
    }
    for (const [connection, handle] of this.#read) {
      stopReading(handle);
      this.#stopped.set(connection, handle);
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
    for (const [connection, handle] of this.#stopped) {
      if (left-- <= 0) break;
      this.#stopped.delete(connection);
      this.#read.set(connection, handle);
      readOn(handle, { afterWrites: this.#afterWrites });
    }
    if (this.#stopped.size > 0) this.#awaitTurn();
    // Node has started to read those again to which a write was done meanwhile. Nothing of them has been read yet.
    if (this.#afterWrites) for (const handle of this.#stopped.values()) handle.readStop();
  }
}
