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
    let received = Buffer.alloc(0);
    let rest = afterwards;
    const conclude = () => {
      socket.destroy();
      try {
        resolve(readAnswers(received, bodyless));
      } catch (error) {
        reject(error);
      }
    };
    socket.on("error", reject);
    socket.on("end", conclude);
    socket.on("data", (piece) => {
      received = Buffer.concat([received, piece]);
      const { length } = readAnswers(received, bodyless);
      if (length >= answers) conclude();
      else if (length > 0 && rest !== "") {
        socket.write(toBytes(rest));
        rest = "";
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

/** The complete answers among the bytes; interim ones (100 Continue) are skipped. */
function readAnswers(bytes: Buffer, bodyless: boolean): RawAnswer[] {
  const answers: RawAnswer[] = [];
  let from = 0;
  for (;;) {
    const headEnd = bytes.indexOf("\r\n\r\n", from);
    if (headEnd === -1) return answers;
    const [statusLine = "", ...headerLines] = bytes.toString("latin1", from, headEnd).split("\r\n");
    const status = /^HTTP\/1\.1 (\d{3}) /.exec(statusLine)?.[1];
    if (status === undefined) throw new Error(`not a status line: ${statusLine}`);
    from = headEnd + 4;
    if (status.startsWith("1")) continue;
    const headers = new Map(headerLines.map((line) => headerOf(line)));
    const length = headers.get("content-length");
    if (length === undefined) throw new Error("an answer without Content-Length");
    const end = from + (bodyless ? 0 : Number(length));
    if (bytes.length < end) return answers;
    answers.push({ status: Number(status), headers, body: bytes.toString("utf8", from, end) });
    from = end;
  }
}

function headerOf(line: string): [string, string] {
  const colon = line.indexOf(":");
  return [line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim()];
}
