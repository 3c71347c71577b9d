/**
 * Reads the connections of an HTTP/1.1 server in turns, by how long it takes to parse what they send and to begin with it: thousands of
 * pipelined requests, or ten thousand chunks of a byte, have room in what Node reads at once. Until a connection is trusted: for that,
 * Node takes a tenth less time by itself.
 */

import type { IncomingMessage, Server } from "node:http";
import type { Socket } from "node:net";
import { type HandledSocket, PiecewiseConnection, ReadingTurns } from "./reading-turns.ts";
import { type Handle, readOn, stopReading } from "./stopped-handles.ts";

const limits = { pieceBytes: 1024, shareMs: 0.25, spentInTurnMs: 5, spentOnLargeMs: 2 };

/**
 * How long Node takes to parse a request of a trusted connection, with each character of its target, and each name and value of its
 * headers and trailers; and a chunk of a body. A connection that takes more than its share at once is trusted no longer.
 */
const requestMs = 0.006;
const targetCharacterMs = 0.00004;
const headerMs = 0.00003;
const chunkMs = 0.0003;

interface Parser {
  /** Whether Node unconsumes it when it is done with it. */
  _consumed: boolean;
  consume(handle: Handle): void;
  unconsume(): void;
}

/** What Node's HTTP server adds to a socket. */
interface HttpSocket extends HandledSocket {
  readonly _handle: (Handle & { _consumed?: boolean }) | null;
  readonly parser: Parser | null;
  /** Whether Node has paused it, until responses were taken. */
  readonly _paused: boolean;
}

class Connection extends PiecewiseConnection<HttpSocket> {
  /** Whether what waits is not parsed before the socket is resumed. */
  isHeld = false;
  /** Whether Node's parser reads it by itself. */
  isTrusted = false;
  hasSentALot = false;

  /** Node takes nothing of a connection that it has paused. */
  override get canBeParsed(): boolean {
    return !this.isHeld && !this.socket._paused;
  }

  override goOn(): void {
    this.isHeld = false;
    super.goOn();
  }
}

const connections = new WeakMap<Socket, Connection>();

/** To be called once, before the server listens. */
export function readRequestsInTurns(server: Server): void {
  const turns = new ReadingTurns(limits);
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

function readInPieces(socket: HttpSocket, turns: ReadingTurns): void {
  const { _handle: handle } = socket;
  if (handle === null) return;
  connections.set(socket, new Connection(socket, turns));
  // As Node's own listener notes it, which therefore leaves the socket alone.
  handle._consumed = true;
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
    if (before < limits.shareMs && this.#spentMs >= limits.shareMs) distrust(connection);
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
    // Node does so once more when it is done with it, which changes nothing.
    parser?.unconsume();
    readOn(handle);
  });
}
