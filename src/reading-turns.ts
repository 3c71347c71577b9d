/**
 * Has what arrives on connections parsed in small pieces, and in turns, by how long that takes. Node by itself parses 64 KiB of a
 * connection at once, which have room for thousands of requests, and all connections in the same turn of the event loop.
 */

import type { Socket } from "node:net";
import { type Handle, readOn, stopReading } from "./stopped-handles.ts";

export interface TurnLimits {
  /** How much is parsed of a connection before the time is looked at. */
  readonly pieceBytes: number;
  /** What a connection may take at once. What it has sent beyond that waits for its turns, behind others that have sent less. */
  readonly shareMs: number;
  /** For how long connections are parsed in a turn of the event loop: as data arrives, and as long again those that waited. */
  readonly spentInTurnMs: number;
  /** And those that send a lot. */
  readonly spentOnLargeMs: number;
}

/** Who has sent more than this waits behind those that have not, too: it has room for the head of a browser's request. */
const littleBytes = 4 * 1024;
/** What may wait on all connections together. Beyond that, a connection is closed of which more than a little would wait. */
const mostWaitingBytes = 64 * 1024 * 1024;

/** Of what Node has read ahead. Over TLS, that may be a thousand records of some bytes each, and each buffer takes far more memory. */
const mostBuffers = 64;

/** A socket as Node has it. */
export interface HandledSocket extends Socket {
  readonly _handle: Handle | null;
}

type Emit = (event: string | symbol, ...given: unknown[]) => boolean;

/** A connection whose socket reports what arrives, and its end, only in its turns. To be created before anybody listens to it. */
export class PiecewiseConnection<S extends HandledSocket = HandledSocket> {
  readonly socket: S;
  readonly #emit: Emit;
  #turns: ReadingTurns;
  /** What was read and not parsed yet. */
  rest: Buffer | undefined;
  /** What Node has read ahead after that. */
  #ahead: Buffer[] = [];
  /** How much memory both take. */
  waitingBytes = 0;
  /** Whether the client's end of the stream waits behind that: Node reads ahead of a paused socket. */
  #endWaits = false;

  constructor(socket: S, turns: ReadingTurns) {
    this.socket = socket;
    this.#turns = turns;
    this.#emit = socket.emit.bind(socket) as Emit;
    const emit = (event: string | symbol, ...given: unknown[]) => {
      if (event === "data") this.#turns.take(this, given[0] as Buffer);
      else if (event === "end" && this.rest !== undefined) this.#endWaits = true;
      else return this.#emit(event, ...given);
      return true;
    };
    Object.assign(socket, { emit });
    socket.on("resume", () => this.goOn());
    socket.on("close", () => {
      this.#drop();
      this.#turns.leave(this);
    });
  }

  /** Node reads ahead while the socket is paused, and all TLS records that have arrived. */
  readAhead(received: Buffer): void {
    this.#ahead.push(received);
    if (this.#ahead.length === mostBuffers) this.#join();
  }

  #join(): void {
    if (this.#ahead.length === 0) return;
    const ahead = this.#ahead;
    this.#ahead = [];
    this.rest = Buffer.concat(this.rest === undefined ? ahead : [this.rest, ...ahead]);
  }

  #drop(): void {
    this.rest = undefined;
    this.#ahead = [];
  }

  /** Whether Node takes what has arrived now. If not, it takes nothing before the socket is resumed. */
  get canBeParsed(): boolean {
    return true;
  }

  /** The socket is resumed. */
  goOn(): void {
    this.#turns.goOn(this);
  }

  /** All of it was parsed. */
  readOn(): void {
    const { _handle: handle } = this.socket;
    if (handle !== null) readOn(handle);
  }

  /** Its turns are others from now on. Not to be called while it is parsed. */
  moveTo(turns: ReadingTurns): void {
    this.#join();
    this.#turns.leave(this);
    this.#turns = turns;
    turns.enter(this);
  }

  /** Hands the next pieces to the parser until the share is used up. Returns how long it took, in milliseconds. */
  parsePieces({ pieceBytes, shareMs }: TurnLimits): number {
    const { socket } = this;
    const beganAt = performance.now();
    let took = 0;
    for (;;) {
      this.#join();
      if (this.rest === undefined || !this.canBeParsed || took >= shareMs) break;
      const piece = this.rest.subarray(0, pieceBytes);
      this.rest = piece.length < this.rest.length ? this.rest.subarray(pieceBytes) : undefined;
      this.#emit("data", piece);
      if (socket.destroyed) this.#drop();
      took = performance.now() - beganAt;
    }
    if (this.#endWaits && this.rest === undefined) {
      this.#endWaits = false;
      if (!socket.destroyed) this.#emit("end");
    }
    return took;
  }
}

export class ReadingTurns {
  readonly #limits: TurnLimits;
  /** Those that have sent little, of which nothing was parsed yet, and others, in the order of their turns. */
  readonly #small = new Set<PiecewiseConnection>();
  readonly #large = new Set<PiecewiseConnection>();
  #spentMs = 0;
  #isTurnDue = false;
  #waitingBytes = 0;

  constructor(limits: TurnLimits) {
    this.#limits = limits;
  }

  take(connection: PiecewiseConnection, received: Buffer): void {
    // What came before it was dropped: the middle of a body would be taken for a request.
    if (connection.socket.destroyed) return;
    if (connection.rest !== undefined) {
      connection.readAhead(received);
      this.#keep(connection, received.length);
      return;
    }
    connection.rest = received;
    const isTime = this.#spentMs < this.#limits.spentInTurnMs;
    if (isTime) this.#spentMs += connection.parsePieces(this.#limits);
    this.#awaitTurn();
    if (connection.rest === undefined) return;
    const { _handle: handle } = connection.socket;
    if (handle === null) return;
    stopReading(handle);
    this.#keep(connection, received.length);
    const isLittle = received.length <= littleBytes;
    if (this.#waitingBytes > mostWaitingBytes && !isLittle) connection.socket.destroy();
    else if (isTime || !isLittle) this.#queueLarge(connection);
    else this.#small.add(connection);
  }

  goOn(connection: PiecewiseConnection): void {
    if (connection.rest === undefined || this.#small.has(connection)) return;
    this.#queueLarge(connection);
    this.#awaitTurn();
  }

  /** What waits of the connection, waits here. */
  enter(connection: PiecewiseConnection): void {
    if (connection.rest === undefined) return;
    this.#keep(connection, connection.rest.length);
    this.goOn(connection);
  }

  /** The connection has no more turns here. */
  leave(connection: PiecewiseConnection): void {
    this.#free(connection);
    this.#small.delete(connection);
    this.#large.delete(connection);
  }

  #keep(connection: PiecewiseConnection, bytes: number): void {
    connection.waitingBytes += bytes;
    this.#waitingBytes += bytes;
  }

  #free(connection: PiecewiseConnection): void {
    this.#waitingBytes -= connection.waitingBytes;
    connection.waitingBytes = 0;
  }

  #queueLarge(connection: PiecewiseConnection): void {
    // Until it is resumed.
    if (connection.canBeParsed) this.#large.add(connection);
  }

  #awaitTurn(): void {
    if (this.#isTurnDue) return;
    this.#isTurnDue = true;
    setImmediate(() => this.#nextTurn());
  }

  #nextTurn(): void {
    this.#isTurnDue = false;
    this.#parseNext(this.#small, this.#limits.spentInTurnMs);
    this.#parseNext(this.#large, this.#limits.spentOnLargeMs);
    this.#spentMs = 0;
    if (this.#small.size > 0 || this.#large.size > 0) this.#awaitTurn();
  }

  #parseNext(waiting: Set<PiecewiseConnection>, mostMs: number): void {
    let spentMs = 0;
    for (const connection of waiting) {
      if (spentMs >= mostMs) break;
      waiting.delete(connection);
      spentMs += connection.parsePieces(this.#limits);
      if (connection.rest !== undefined) {
        this.#queueLarge(connection);
        continue;
      }
      this.#free(connection);
      connection.readOn();
    }
  }
}
