/**
 * Reads the connections of the gRPC port in turns, by how long it takes to parse what they send and to begin with it. Node parses 64 KiB
 * of a connection at once, which have room for a thousand streams, ten thousand frames of a byte, or a hundred thousand header fields.
 */

import type { Http2Server, Http2Session } from "node:http2";
import type { Socket } from "node:net";
import { constants } from "node:os";
import { TLSSocket, Server as TlsServer } from "node:tls";
import { type HandledSocket, PiecewiseConnection, ReadingTurns } from "../reading-turns.ts";
import { stopReading } from "../stopped-handles.ts";

/** Of connections without a valid credential so far. The smallest frames that open a stream take twelve bytes. */
const strangers = { pieceBytes: 512, shareMs: 0.25, spentInTurnMs: 2, spentOnLargeMs: 0.5 };
/** Of all others. Node itself reads no more at once. */
const known = { pieceBytes: 64 * 1024, shareMs: 2, spentInTurnMs: 20, spentOnLargeMs: 10 };

export interface ReadingOfSessions {
  /** To be called once, before the server listens, and before anything else listens to its connections. */
  watch(server: Http2Server): void;
  /** Reports that the connection has presented a valid credential: it no longer waits for those that have not. Not while it is parsed. */
  admit(session: Http2Session): void;
}

class Connection extends PiecewiseConnection {
  constructor(socket: HandledSocket, turns: ReadingTurns) {
    super(socket, turns);
    // Node would read 64 KiB ahead, also of a client that takes no answers.
    socket.on("pause", () => {
      if (socket._handle !== null) stopReading(socket._handle);
    });
  }

  /** A session takes nothing while it writes. */
  override get canBeParsed(): boolean {
    return !this.socket.isPaused();
  }

  override goOn(): void {
    if (this.rest === undefined) this.readOn();
    else super.goOn();
  }

  override readOn(): void {
    if (this.canBeParsed) super.readOn();
  }
}

export function readSessionsInTurns(): ReadingOfSessions {
  const turnsOfStrangers = new ReadingTurns(strangers);
  const turnsOfKnown = new ReadingTurns(known);
  const connections = new WeakMap<Http2Session, Connection>();

  return {
    watch(server) {
      // Node creates the session while it reports the socket.
      let reported: Connection | undefined;
      const event = server instanceof TlsServer ? "secureConnection" : "connection";
      server.prependListener(event, (socket: HandledSocket) => {
        reported = readByStream(socket, turnsOfStrangers);
      });
      server.on("session", (session) => {
        if (reported === undefined) return;
        connections.set(session, reported);
        // Node keeps a session whose settings the client has not acknowledged as long as anything here leads to its errors.
        session.once("close", () => connections.delete(session));
        const stream = session.socket as StreamOfSession;
        tellPeer(stream, reported.socket);
        writeAtOnce(stream);
        reported = undefined;
      });
    },

    admit(session) {
      connections.get(session)?.moveTo(turnsOfKnown);
    },
  };
}

/** Has the session read the socket as it would any other stream. By itself, it reads its handle, past everything here. */
function readByStream(socket: HandledSocket, turns: ReadingTurns): Connection {
  if (socket._handle !== null) Object.defineProperty(socket._handle, "isStreamBase", { value: false });
  // Its end may wait behind what was read before it, and the session ends it then.
  Object.assign(socket, { allowHalfOpen: true });
  // As the session does to a socket that it reads by itself.
  socket.setNoDelay();
  if (socket instanceof TLSSocket) socket.disableRenegotiation();
  return new Connection(socket, turns);
}

/** The session's own socket, which stands for the stream. */
interface StreamOfSession extends Socket {
  /** Returns zero, or the negative number of an error. */
  doWrite(this: StreamOfSession, request: unknown, buffers: readonly Uint8Array[]): number;
}

/** It knows no addresses. */
function tellPeer(stream: Socket, { remoteAddress, remoteFamily, remotePort }: Socket): void {
  Object.assign(stream, {
    _peername: { address: remoteAddress, family: remoteFamily, port: remotePort },
  });
}

/**
 * Joins what is sent together. Once its client's end has ended the stream, a write fails, as it does on a socket: Node's own would fail
 * an assertion, which ends the process, while the end waits to be sent. Over TLS, that takes room in what the client has yet to take.
 */
function writeAtOnce(stream: StreamOfSession): void {
  const { doWrite } = stream;
  Object.assign(stream, {
    doWrite(this: StreamOfSession, request: unknown, buffers: readonly Uint8Array[]) {
      if (this.writableEnded || this.destroyed) return -constants.errno.EPIPE;
      // Of the receipts of a moment there are dozens, for each of which Node would do a write of its own.
      return doWrite.call(this, request, [Buffer.concat(buffers)]);
    },
  });
}
