/** Reads the connections of an HTTP/1.1 server in turns, by how long Node takes for what is read of them. */

import type { IncomingMessage, Server } from "node:http";
import type { Socket } from "node:net";
import { ReadingTurns } from "./reading-turns.ts";

/**
 * How long Node takes to parse a request, before anything is done with it, and a chunk of a body. Of the connections, no other is read
 * in a turn in which they have taken this long: 64 KiB have room for thousands of pipelined requests, and ten thousand chunks of a byte.
 */
const requestMicroseconds = 6;
const chunkMicroseconds = 0.3;
const spentInTurnMicroseconds = 10_000;
/**
 * What comes on top for each character of its target, which has room for eight thousand parameters, and for each name and each value
 * of its headers and trailers.
 */
const targetCharacterMicroseconds = 0.04;
const headerMicroseconds = 0.03;

/** To be called once, before the server listens. Returns whether a connection waits for its turn to be read. */
export function readRequestsInTurns(server: Server): (socket: Socket) => boolean {
  const reading = new ReadingTurns<Socket>(spentInTurnMicroseconds);
  server.on("connection", (socket) => {
    reading.add(socket, socket);
    socket.on("close", () => reading.remove(socket));
  });
  server.prependListener("request", (request: IncomingMessage) => {
    const { socket, url = "", rawHeaders } = request;
    const head = targetCharacterMicroseconds * url.length + headerMicroseconds * rawHeaders.length;
    reading.spend(socket, requestMicroseconds + head);
    if (request.headers["transfer-encoding"] === undefined) return;
    const push = request.push.bind(request);
    Object.assign(request, {
      push(...given: Parameters<typeof push>) {
        // Trailers come with its end.
        reading.spend(socket, chunkMicroseconds + headerMicroseconds * request.rawTrailers.length);
        return push(...given);
      },
      // Node's own would drop what arrives after the answer, without pushing it: it would not be counted.
      _dump: () => request.resume(),
    });
  });
  return (socket) => reading.isWaiting(socket);
}
