/** The strangers of strangers.ts, in a process of their own: connections that send without pause, and take no notice of the answers. */

import net from "node:net";
import { endHeaders, endStream, frame, preface } from "../test/security/http2-frames.ts";

export interface Flood {
  readonly port: number;
  readonly connections: number;
  /**
   * Over HTTP/1.1: pipelined requests, or chunks of a byte of the body of one. Over HTTP/2: headers that open a stream each, those of
   * thousands of fields each, or frames of a byte of the data of one.
   */
  readonly what: "requests" | "chunks" | "streams" | "fields" | "frames";
  /** Whether each connects again once it has sent 256 KiB. */
  readonly reconnect: boolean;
}

const host = "127.0.0.1";
const bytesAtOnce = 64 * 1024;
const bytesEach = 256 * 1024;
/** Of connections that nobody reads. */
const giveUpAfterMs = 400;

const copies = <T>(bytes: number, one: { readonly length: number } & T): T[] =>
  Array.from({ length: Math.floor(bytes / one.length) }, () => one);
const repeated = (text: string) => Buffer.from(copies(bytesAtOnce, text).join(""));

/** The start of a connection, and what is sent after it, 64 KiB at once. */
interface Sending {
  readonly first: Uint8Array | string;
  next(): Uint8Array;
}

const always = (first: Uint8Array | string, bytes: Uint8Array): Sending => ({ first, next: () => bytes });

/** A request of three fields that every client knows, and of a path of a byte. */
const shortest = Buffer.of(0x83, 0x86, 0x84, 0x41, 1, 0x61);

/** Streams of the same headers, one after the other: the next bytes replace those before. */
function openingStreams(flags: number, headers: Uint8Array): Sending {
  const one = frame("headers", flags, 1, headers);
  const bytes = Buffer.concat(copies(bytesAtOnce, one));
  let streamId = -1;
  return {
    first: preface,
    next() {
      const further = Buffer.from(bytes);
      for (let at = 5; at < further.length; at += one.length) {
        streamId += 2;
        further.writeUInt32BE(streamId, at);
      }
      return further;
    },
  };
}

const sendings: Readonly<Record<Flood["what"], () => Sending>> = {
  requests: () => always("", repeated("GET /v1/verifications/vrf_none HTTP/1.1\r\nHost: a\r\n\r\n")),
  chunks: () =>
    always(
      "POST /v1/verifications HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
      repeated("1\r\na\r\n"),
    ),
  streams: () => openingStreams(endHeaders | endStream, shortest),
  // Each adds a name to the connection's table.
  fields: () =>
    openingStreams(endHeaders, Buffer.concat([shortest, ...copies(16_000, Buffer.of(0x40, 1, 0x61, 0))])),
  frames: () =>
    always(
      Buffer.concat([preface, frame("headers", endHeaders, 1, shortest)]),
      Buffer.concat(copies(bytesAtOnce, frame("data", 0, 1, Buffer.of(0)))),
    ),
};

function sendOn(flood: Flood): void {
  const { port, what } = flood;
  const socket = net.connect(port, host);
  socket.on("error", () => {}).resume();
  // Should it be disconnected.
  socket.on("close", () => setImmediate(sendOn, flood));
  const sending = sendings[what]();
  socket.write(sending.first);
  const next = () => {
    if (socket.destroyed) return;
    if (socket.write(sending.next())) setImmediate(next);
    else socket.once("drain", next);
  };
  next();
}

function sendAndReconnect(flood: Flood): void {
  const socket = net.connect(flood.port, host);
  const late = setTimeout(() => socket.destroy(), giveUpAfterMs);
  socket.on("error", () => {}).resume();
  socket.on("close", () => {
    clearTimeout(late);
    setImmediate(sendAndReconnect, flood);
  });
  const sending = sendings[flood.what]();
  socket.write(sending.first);
  const all = Array.from({ length: bytesEach / bytesAtOnce }, () => sending.next());
  socket.write(Buffer.concat(all), () => socket.destroy());
}

process.once("message", (flood: Flood) => {
  for (let opened = 0; opened < flood.connections; opened += 1) {
    if (flood.reconnect) sendAndReconnect(flood);
    else sendOn(flood);
  }
  process.send?.({});
});
process.on("disconnect", () => process.exit());
