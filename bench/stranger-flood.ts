/** The strangers of strangers.ts, in a process of their own: connections that send without pause, and take no notice of the answers. */

import net from "node:net";

export interface Flood {
  readonly port: number;
  readonly connections: number;
  /** Pipelined requests, or chunks of a byte of the body of one. */
  readonly what: "requests" | "chunks";
  /** Whether each connects again once it has sent 256 KiB. */
  readonly reconnect: boolean;
}

const host = "127.0.0.1";
const request = "GET /v1/verifications/vrf_none HTTP/1.1\r\nHost: a\r\n\r\n";
const head =
  "POST /v1/verifications HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
const chunk = "1\r\na\r\n";
const bytesAtOnce = 64 * 1024;
const bytesEach = 256 * 1024;
/** Of connections that nobody reads. */
const giveUpAfterMs = 400;

const repeated = (text: string, bytes: number) => Buffer.from(text.repeat(Math.floor(bytes / text.length)));

function sendOn({ port, what }: Flood): void {
  const socket = net.connect(port, host);
  socket.on("error", () => {}).resume();
  if (what === "chunks") socket.write(head);
  const bytes = repeated(what === "chunks" ? chunk : request, bytesAtOnce);
  const next = () => {
    if (socket.destroyed) return;
    if (socket.write(bytes)) setImmediate(next);
    else socket.once("drain", next);
  };
  next();
}

function sendAndReconnect(flood: Flood): void {
  const { port, what } = flood;
  const socket = net.connect(port, host);
  const late = setTimeout(() => socket.destroy(), giveUpAfterMs);
  socket.on("error", () => {}).resume();
  socket.on("close", () => {
    clearTimeout(late);
    setImmediate(sendAndReconnect, flood);
  });
  if (what === "chunks") socket.write(head);
  socket.write(repeated(what === "chunks" ? chunk : request, bytesEach), () => socket.destroy());
}

process.once("message", (flood: Flood) => {
  for (let opened = 0; opened < flood.connections; opened += 1) {
    if (flood.reconnect) sendAndReconnect(flood);
    else sendOn(flood);
  }
  process.send?.({});
});
process.on("disconnect", () => process.exit());
