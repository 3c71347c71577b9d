/**
 * HTTP/1.1 over plain sockets, one request at a time on each of many kept connections. Where the generator
 * shares two cores with what it measures, its own cost is part of every figure: this one takes some 10 µs a
 * request, where a whole HTTP client takes three to ten times that.
 */

import net from "node:net";
import { type LoadResult, Tally } from "./load.ts";

export interface HttpRound {
  /** The next request as it goes over the wire, ASCII only; undefined where there are no more. */
  readonly next: () => string | undefined;
  /** The status every answer must have. */
  readonly status: number;
  readonly milliseconds: number;
}

const receiveBytes = 16 * 1024;

export class HttpLoad {
  readonly #connections: Connection[] = [];

  static async open(port: number, connections: number): Promise<HttpLoad> {
    const load = new HttpLoad();
    for (let opened = 0; opened < connections; opened++) {
      const connection = new Connection(port);
      load.#connections.push(connection);
      await connection.ready;
    }
    return load;
  }

  /** Sends until the time is over or nothing is left, and waits for the last answers. */
  async run(round: HttpRound): Promise<LoadResult> {
    const tally = new Tally();
    const deadline = performance.now() + round.milliseconds;
    await Promise.all(this.#connections.map((connection) => connection.run(round, tally, deadline)));
    return tally.result();
  }

  close(): void {
    for (const connection of this.#connections) connection.close();
  }
}

const headEnd = Buffer.from("\r\n\r\n");
const lengthField = Buffer.from("content-length: ");

class Connection {
  readonly ready: Promise<void>;
  readonly #socket: net.Socket;
  #onAnswer: (status: number, answer: Buffer) => void = () => {};
  #onLost: (error: Error) => void = () => {};
  /** What has arrived of an answer that is not whole yet. */
  #partial: Buffer | undefined;

  constructor(port: number) {
    const buffer = Buffer.allocUnsafe(receiveBytes);
    this.#socket = net.connect({
      port,
      host: "127.0.0.1",
      noDelay: true,
      onread: {
        buffer,
        callback: (bytes) => {
          this.#receive(buffer.subarray(0, bytes));
          return true;
        },
      },
    });
    const lost = (error?: Error) => this.#onLost(error ?? new Error("a connection was closed by the server"));
    this.#socket.on("error", lost);
    this.#socket.on("close", () => lost());
    this.ready = new Promise((resolve, reject) => {
      this.#socket.once("connect", resolve);
      this.#onLost = reject;
    });
  }

  run({ next, status: expected }: HttpRound, tally: Tally, deadline: number): Promise<void> {
    return new Promise((resolve, reject) => {
      let sentAt = 0;
      const send = (now: number) => {
        const request = now < deadline ? next() : undefined;
        if (request === undefined) {
          resolve();
          return;
        }
        sentAt = now;
        this.#socket.write(request, "latin1");
      };
      this.#onLost = reject;
      this.#onAnswer = (status, answer) => {
        if (status !== expected) {
          reject(new Error(`expected ${expected}, got: ${answer.toString("utf8")}`));
          return;
        }
        const now = performance.now();
        tally.add(now - sentAt);
        send(now);
      };
      send(performance.now());
    });
  }

  close(): void {
    this.#onLost = () => {};
    this.#socket.destroy();
  }

  #receive(piece: Buffer): void {
    const received = this.#partial === undefined ? piece : Buffer.concat([this.#partial, piece]);
    const head = received.indexOf(headEnd);
    const length = head === -1 ? -1 : contentLength(received, head);
    if (head === -1 || received.length < head + headEnd.length + length) {
      // The receive buffer is used again.
      this.#partial = Buffer.from(received);
      return;
    }
    this.#partial = undefined;
    this.#onAnswer(statusOf(received), received);
  }
}

const zero = 0x30;

/** `HTTP/1.1 200 OK` */
function statusOf(answer: Buffer): number {
  const digit = (index: number) => (answer[index] ?? zero) - zero;
  return digit(9) * 100 + digit(10) * 10 + digit(11);
}

function contentLength(answer: Buffer, head: number): number {
  const field = answer.indexOf(lengthField);
  if (field === -1 || field > head) throw new Error(`an answer without content-length: ${answer}`);
  let length = 0;
  for (let index = field + lengthField.length; index < head; index++) {
    const digit = (answer[index] ?? 0) - zero;
    if (digit < 0 || digit > 9) break;
    length = length * 10 + digit;
  }
  return length;
}
