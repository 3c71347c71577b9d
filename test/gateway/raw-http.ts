/** HTTP as bytes, for requests that no client library would send. */

import net from "node:net";

export interface RawAnswer {
  status: number;
  /** Names in lower case. */
  headers: Map<string, string>;
  body: string;
}

/**
 * Sends the pieces one after the other and collects the answers until there are `answers` of them or the server closes the
 * connection. `halfClose` ends the sending side after the last piece; `afterwards` is sent after the first answer.
 */
export function exchange(
  httpUrl: string,
  pieces: string | readonly (string | Buffer)[],
  { answers = Number.POSITIVE_INFINITY, halfClose = false, bodyless = false, afterwards = "" } = {},
): Promise<RawAnswer[]> {
  const { hostname, port } = new URL(httpUrl);
  return new Promise((resolve, reject) => {
    const socket = net.connect({ host: hostname, port: Number(port), allowHalfOpen: true });
    const read: RawAnswer[] = [];
    let unread: Buffer = Buffer.alloc(0);
    let unsent = afterwards;
    const conclude = () => {
      socket.destroy();
      resolve(read);
    };
    socket.on("error", reject);
    socket.on("end", conclude);
    socket.on("data", (piece) => {
      try {
        unread = readAnswers(Buffer.concat([unread, piece]), read, bodyless);
      } catch (error) {
        socket.destroy();
        reject(error);
        return;
      }
      if (read.length >= answers) conclude();
      else if (read.length > 0 && unsent !== "") {
        socket.write(toBytes(unsent));
        unsent = "";
      }
    });
    for (const piece of [pieces].flat()) socket.write(toBytes(piece));
    if (halfClose) socket.end();
  });
}

/** Characters up to U+00FF are bytes. */
function toBytes(piece: string | Buffer): Buffer {
  return typeof piece === "string" ? Buffer.from(piece, "latin1") : piece;
}

/** Adds the complete answers among the bytes, without interim ones (100 Continue), and returns the remaining bytes. */
function readAnswers(bytes: Buffer, answers: RawAnswer[], bodyless: boolean): Buffer {
  let from = 0;
  for (;;) {
    const headEnd = bytes.indexOf("\r\n\r\n", from);
    if (headEnd === -1) return bytes.subarray(from);
    const [statusLine = "", ...headerLines] = bytes.toString("latin1", from, headEnd).split("\r\n");
    const status = /^HTTP\/1\.1 (\d{3}) /.exec(statusLine)?.[1];
    if (status === undefined) throw new Error(`not a status line: ${statusLine}`);
    const bodyFrom = headEnd + 4;
    if (status.startsWith("1")) {
      from = bodyFrom;
      continue;
    }
    const headers = new Map(headerLines.map((line) => headerOf(line)));
    const length = headers.get("content-length");
    if (length === undefined) throw new Error("an answer without Content-Length");
    const end = bodyFrom + (bodyless ? 0 : Number(length));
    if (bytes.length < end) return bytes.subarray(from);
    answers.push({ status: Number(status), headers, body: bytes.toString("utf8", bodyFrom, end) });
    from = end;
  }
}

function headerOf(line: string): [string, string] {
  const colon = line.indexOf(":");
  return [line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim()];
}

/** The status line of each answer that arrives before the connection ends. */
export async function statusesOf(socket: net.Socket) {
  const pieces: Buffer[] = [];
  for await (const piece of socket) pieces.push(piece);
  const text = Buffer.concat(pieces).toString("latin1");
  return text.match(/HTTP\/1\.1 \d+/g);
}
