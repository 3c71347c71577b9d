/**
 * Reads the connections of an HTTP/1.1 server in turns, by how long it takes to parse what they send and to begin with it. Node parses
 * 64 KiB of a connection at once, which have room for thousands of pipelined requests and ten thousand chunks of a byte, and all
 * connections in the same turn of the event loop. So what arrives is parsed in pieces here, until a connection is trusted: for that,
 * Node takes a tenth less time.
 */

import type { IncomingMessage, Server } from "node:http";
import type { Socket } from "node:net";
import { type Handle, readOn, stopReading } from "./stopped-handles.ts";

const pieceBytes = 1024;
/** What a connection may take at once. What it has sent beyond that waits for its turns, behind others that have sent less. */
const shareMs = 0.25;
/** Who has sent more than this waits behind those that have not, too: it has room for the head of a browser's request. */
const littleBytes = 4 * 1024;
/** For how long connections are parsed in a turn of the event loop: as data arrives, then those that waited, then those that send a lot. */
const spentInTurnMs = 5;
const spentOnLargeMs = 2;
/** What may wait on all connections together. Beyond that, a connection is closed of which more than a little would wait. */
const mostWaitingBytes = 64 * 1024 * 1024;

/**
 * How long Node takes to parse a request of a trusted connection, with each character of its target, and each name and value of its
 * headers and trailers; and a chunk of a body. A connection that takes more than its share at once is trusted no longer.
 */
const requestMs = 0.006;
const targetCharacterMs = 0.00004;
const headerMs = 0.00003;
const chunkMs = 0.0003;

interface Parser {
  _consumed: boolean;
  consume(handle: Handle): void;
  unconsume(): void;
}

/** What Node's HTTP server adds to a socket. */
interface HttpSocket extends Socket {
  readonly _handle: (Handle & { _consumed?: boolean }) | null;
  readonly parser: Parser | null;
  /** Whether Node has paused it, until responses were taken. */
  readonly _paused: boolean;
}

interface Connection {
  readonly socket: HttpSocket;
  readonly parse: (piece: Buffer) => void;
  readonly end: () => void;
  /** What was read and not parsed yet. */
  rest: Buffer | undefined;
  /** How much memory that takes. */
  waitingBytes: number;
  /** Whether that is not parsed before the socket is resumed. */
  isHeld: boolean;
  /** Whether the client's end of the stream waits behind that: Node reads ahead of a paused socket. */
  endWaits: boolean;
  /** Whether Node's parser reads it by itself. */
  isTrusted: boolean;
  hasSentALot: boolean;
}

const connections = new WeakMap<Socket, Connection>();

/** To be called once, before the server listens. */
export function readRequestsInTurns(server: Server): void {
  const turns = new Turns();
  // Before Node's own listener, which would have the parser read it.
  server.prependListener("connection", (socket: HttpSocket) => readInPieces(socket, turns));
  const spending = new Spending();
  server.prependListener("request", (request: IncomingMessage) => {
    const { socket, url = "", rawHeaders } = request;
    const connection = connections.get(socket);
    if (connection === undefined) return;
    if (connection.isTrusted)
      spending.spend(connection, requestMs + targetCharacterMs * url.length + headerMs * rawHeaders.length);
    if (request.headers["transfer-encoding"] === undefined) return;
    const push = request.push.bind(request);
    Object.assign(request, {
      push(...given: Parameters<typeof push>) {
        // Trailers come with its end.
        if (connection.isTrusted) spending.spend(connection, chunkMs + headerMs * request.rawTrailers.length);
        return push(...given);
      },
      // Node's own would drop what arrives after the answer, without pushing it: it would not be counted.
      _dump: () => request.resume(),
    });
  });
}

/** Whether something of a connection was read, and waits for its turn to be parsed. */
export const waitsForTurn = (socket: Socket): boolean => connections.get(socket)?.rest !== undefined;

/** Leaves what waits of a connection as it is until the socket is resumed: it has sent more requests than there is room for. */
export function holdRest(socket: Socket): void {
  const connection = connections.get(socket);
  if (connection !== undefined) connection.isHeld = true;
}

/** Reports that a connection has presented a valid credential. */
export function trust(socket: Socket): void {
  const connection = connections.get(socket);
  if (connection === undefined || connection.isTrusted) return;
  const { parser, _handle: handle, readableLength } = connection.socket;
  const isAllParsed = connection.rest === undefined && readableLength === 0;
  if (connection.hasSentALot || !isAllParsed || !parser || handle === null) return;
  connection.isTrusted = true;
  parser.consume(handle);
  parser._consumed = true;
}

function readInPieces(socket: HttpSocket, turns: Turns): void {
  const { _handle: handle } = socket;
  if (handle === null) return;
  const emit = socket.emit.bind(socket) as (event: string | symbol, ...given: unknown[]) => boolean;
  const parse = (piece: Buffer) => void emit("data", piece);
  const connection: Connection = {
    socket,
    parse,
    end: () => void emit("end"),
    rest: undefined,
    waitingBytes: 0,
    isHeld: false,
    endWaits: false,
    isTrusted: false,
    hasSentALot: false,
  };
  connections.set(socket, connection);
  // As Node's own listener notes it, which therefore leaves the socket alone.
  handle._consumed = true;
  Object.assign(socket, {
    emit(event: string | symbol, ...given: unknown[]) {
      if (event === "data") turns.take(connection, given[0] as Buffer);
      else if (event === "end" && connection.rest !== undefined) connection.endWaits = true;
      else return emit(event, ...given);
      return true;
    },
  });
  socket.on("resume", () => {
    connection.isHeld = false;
    turns.goOn(connection);
  });
  socket.on("close", () => turns.remove(connection));
}

/** Node takes nothing of a connection that it has paused. */
const canBeParsed = ({ socket, isHeld }: Connection) => !isHeld && !socket._paused;

/** Hands the next pieces to the parser until the share is used up. Returns how long it took, in milliseconds. */
function parsePieces(connection: Connection): number {
  const { socket } = connection;
  const beganAt = performance.now();
  let took = 0;
  while (connection.rest !== undefined && canBeParsed(connection) && took < shareMs) {
    const piece = connection.rest.subarray(0, pieceBytes);
    connection.rest =
      piece.length < connection.rest.length ? connection.rest.subarray(pieceBytes) : undefined;
    connection.parse(piece);
    if (socket.destroyed) connection.rest = undefined;
    took = performance.now() - beganAt;
  }
  if (connection.endWaits && connection.rest === undefined) {
    connection.endWaits = false;
    if (!socket.destroyed) connection.end();
  }
  return took;
}

class Turns {
  /** Those that have sent little, of which nothing was parsed yet, and others, in the order of their turns. */
  readonly #small = new Set<Connection>();
  readonly #large = new Set<Connection>();
  #spentMs = 0;
  #isTurnDue = false;
  #waitingBytes = 0;

  take(connection: Connection, received: Buffer): void {
    const { rest } = connection;
    if (rest !== undefined) {
      // Node has read ahead while the socket was paused.
      connection.rest = Buffer.concat([rest, received]);
      this.#keep(connection, received);
      return;
    }
    connection.rest = received;
    const isTime = this.#spentMs < spentInTurnMs;
    if (isTime) this.#spentMs += parsePieces(connection);
    this.#awaitTurn();
    if (connection.rest === undefined) return;
    const { _handle: handle } = connection.socket;
    if (handle === null) return;
    stopReading(handle);
    this.#keep(connection, received);
    const isLittle = received.length <= littleBytes;
    if (this.#waitingBytes > mostWaitingBytes && !isLittle) connection.socket.destroy();
    else if (isTime || !isLittle) this.#queueLarge(connection);
    else this.#small.add(connection);
  }

  goOn(connection: Connection): void {
    if (connection.rest === undefined || this.#small.has(connection)) return;
    this.#queueLarge(connection);
    this.#awaitTurn();
  }

  remove(connection: Connection): void {
    connection.rest = undefined;
    this.#free(connection);
    this.#small.delete(connection);
    this.#large.delete(connection);
  }

  #keep(connection: Connection, received: Buffer): void {
    connection.waitingBytes += received.length;
    this.#waitingBytes += received.length;
  }

  #free(connection: Connection): void {
    this.#waitingBytes -= connection.waitingBytes;
    connection.waitingBytes = 0;
  }

  #queueLarge(connection: Connection): void {
    // Until it is resumed.
    if (canBeParsed(connection)) this.#large.add(connection);
  }

  #awaitTurn(): void {
    if (this.#isTurnDue) return;
    this.#isTurnDue = true;
    setImmediate(() => this.#nextTurn());
  }

  #nextTurn(): void {
    this.#isTurnDue = false;
    this.#parseNext(this.#small, spentInTurnMs);
    this.#parseNext(this.#large, spentOnLargeMs);
    this.#spentMs = 0;
    if (this.#small.size > 0 || this.#large.size > 0) this.#awaitTurn();
  }

  #parseNext(waiting: Set<Connection>, mostMs: number): void {
    let spentMs = 0;
    for (const connection of waiting) {
      if (spentMs >= mostMs) break;
      waiting.delete(connection);
      spentMs += parsePieces(connection);
      if (connection.rest !== undefined) {
        this.#queueLarge(connection);
        continue;
      }
      this.#free(connection);
      const { _handle: handle } = connection.socket;
      if (handle !== null) readOn(handle);
    }
  }
}

/** What the trusted connections take. Node takes all of one, then of the next. */
class Spending {
  #last: Connection | undefined;
  #spentMs = 0;

  spend(connection: Connection, ms: number): void {
    if (connection !== this.#last) {
      if (this.#last === undefined) setImmediate(() => this.#begin(undefined));
      this.#begin(connection);
    }
    const before = this.#spentMs;
    this.#spentMs += ms;
    if (before < shareMs && this.#spentMs >= shareMs) distrust(connection);
  }

  #begin(connection: Connection | undefined): void {
    this.#last = connection;
    this.#spentMs = 0;
  }
}

/** From the next turn on, what it sends is parsed in pieces again. */
function distrust(connection: Connection): void {
  const { socket } = connection;
  connection.hasSentALot = true;
  if (socket._handle !== null) stopReading(socket._handle);
  setImmediate(() => {
    connection.isTrusted = false;
    const { parser, _handle: handle } = socket;
    if (handle === null) return;
    if (parser) {
      parser.unconsume();
      parser._consumed = false;
    }
    readOn(handle);
  });
}
