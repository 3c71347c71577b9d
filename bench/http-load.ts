/**
 * HTTP/1.1 over plain sockets, one request at a time on each of many keep-alive connections. If the load generator shares two
 * cores with what it measures, its own cost is part of every figure: this one takes some 10 µs per request, a complete HTTP
 * client three to ten times that.
 */

import net from "node:net";
import { type LoadResult, Tally } from "./load.ts";
import { atConstantRate } from "./pacing.ts";

export interface HttpRound {
  /** The next request as bytes for the wire, ASCII only; undefined if there are no more. */
  readonly next: () => string | undefined;
  /** The expected status of every answer. */
  readonly status: number;
  readonly milliseconds: number;
}

const receiveBytes = 16 * 1024;

export class HttpLoad {
  readonly #ports: readonly number[];
  readonly #connections: (Connection | undefined)[];

  private constructor(ports: readonly number[], connections: number) {
    this.#ports = ports;
    this.#connections = new Array(connections);
  }

  /** `connections` in total, spread over the ports. */
  static async open(port: number | readonly number[], connections: number): Promise<HttpLoad> {
    const load = new HttpLoad([port].flat(), connections);
    await load.#opened();
    return load;
  }

  /** All connections. Those that the server has closed since their last use, as it may, are reopened. */
  async #opened(): Promise<readonly Connection[]> {
    const opened: Connection[] = [];
    for (let index = 0; index < this.#connections.length; index++) {
      let connection = this.#connections[index];
      if (connection === undefined || connection.isLost) {
        connection = new Connection(this.#ports[index % this.#ports.length] as number);
        this.#connections[index] = connection;
        await connection.ready;
      }
      opened.push(connection);
    }
    return opened;
  }

  /** Sends until the time is over or no requests are left, and waits for the last answers. */
  async run(round: HttpRound): Promise<LoadResult> {
    const connections = await this.#opened();
    const tally = new Tally();
    const deadline = performance.now() + round.milliseconds;
    await Promise.all(connections.map((connection) => connection.run(round, tally, deadline)));
    return tally.result();
  }

  /** Sends at a constant rate. A request that finds every connection busy waits for one. */
  async pace(round: HttpRound, perSecond: number): Promise<LoadResult> {
    const tally = new Tally();
    const idle = [...(await this.#opened())];
    const due: { readonly request: string; readonly dueAt: number }[] = [];
    let unanswered = 0;
    let allArrived = false;
    await new Promise<void>((resolve, reject) => {
      const send = () => {
        while (due.length > 0 && idle.length > 0) {
          const connection = idle.pop() as Connection;
          const { request, dueAt } = due.shift() as (typeof due)[number];
          connection.ask(request, round.status, reject, () => {
            tally.add(performance.now() - dueAt);
            unanswered--;
            idle.push(connection);
            send();
            if (allArrived && unanswered === 0) resolve();
          });
        }
      };
      atConstantRate(perSecond, round.milliseconds, (dueAt) => {
        const request = round.next();
        if (request === undefined) throw new Error("there are no more requests");
        unanswered++;
        due.push({ request, dueAt });
        send();
      }).then(() => {
        allArrived = true;
        if (unanswered === 0) resolve();
      }, reject);
    });
    return tally.result();
  }

  /**
   * Sends at a constant rate, whatever the answers are. A request that finds every connection busy is not sent. Returns results
   * per status, with latencies counted from when each request was due, for the answers that arrive during the sending; later
   * ones are awaited but not counted.
   */
  async flood(
    { next, milliseconds }: Omit<HttpRound, "status">,
    perSecond: number,
  ): Promise<{ readonly answers: ReadonlyMap<number, LoadResult>; readonly unsent: number }> {
    const tallies = new Map<number, Tally>();
    const idle = [...(await this.#opened())];
    let unsent = 0;
    await new Promise<void>((resolve, reject) => {
      let allArrived = false;
      const endIfAnswered = () => {
        if (allArrived && idle.length === this.#connections.length) resolve();
      };
      atConstantRate(perSecond, milliseconds, (dueAt) => {
        const connection = idle.pop();
        const request = connection && next();
        if (connection === undefined || request === undefined) {
          unsent++;
          return;
        }
        connection.exchange(request, reject, (status) => {
          idle.push(connection);
          if (allArrived) {
            endIfAnswered();
            return;
          }
          const tally = tallies.get(status) ?? new Tally();
          tallies.set(status, tally);
          tally.add(performance.now() - dueAt);
        });
      }).then(() => {
        allArrived = true;
        endIfAnswered();
      }, reject);
    });
    return { answers: new Map([...tallies].map(([status, tally]) => [status, tally.result()])), unsent };
  }

  /**
   * Runs one cycle after the other on each connection until the time is over. A cycle consists of any number of exchanges; it
   * counts as one answer and its latency is the total.
   */
  async runCycles(
    milliseconds: number,
    cycle: (exchange: Exchange) => Promise<unknown>,
  ): Promise<LoadResult> {
    const connections = await this.#opened();
    const tally = new Tally();
    const deadline = performance.now() + milliseconds;
    await Promise.all(
      connections.map(async (connection) => {
        const exchange: Exchange = (request, status) =>
          new Promise((resolve, reject) => {
            connection.ask(request, status, reject, (answer) => resolve(answer.toString("utf8")));
          });
        for (let startedAt = performance.now(); startedAt < deadline; ) {
          await cycle(exchange);
          const now = performance.now();
          tally.add(now - startedAt);
          startedAt = now;
        }
      }),
    );
    return tally.result();
  }

  close(): void {
    for (const connection of this.#connections) connection?.close();
  }
}

/** Sends a request and resolves with the complete answer; rejects if it has another status. */
export type Exchange = (request: string, status: number) => Promise<string>;

/** The part after an answer's header section. */
export function bodyOf(answer: string): string {
  return answer.slice(answer.indexOf("\r\n\r\n") + 4);
}

const headEnd = Buffer.from("\r\n\r\n");
const lengthField = Buffer.from("content-length: ");
const chunkedField = Buffer.from("Transfer-Encoding: chunked");
const lastChunk = Buffer.from("\r\n0\r\n\r\n");

class Connection {
  readonly ready: Promise<void>;
  readonly #socket: net.Socket;
  #onAnswer: (status: number, answer: Buffer) => void = () => {};
  #onLost: (error: Error) => void = () => {};
  #lost: Error | undefined;
  /** The received part of an incomplete answer. */
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
    const lost = (error?: Error) => {
      this.#lost ??= error ?? new Error("a connection was closed by the server");
      this.#onLost(this.#lost);
    };
    this.#socket.on("error", lost);
    this.#socket.on("close", () => lost());
    this.ready = new Promise((resolve, reject) => {
      this.#socket.once("connect", resolve);
      this.#onLost = reject;
    });
  }

  get isLost(): boolean {
    return this.#lost !== undefined;
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
      this.#awaitLoss(reject);
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

  /** Sends one request and calls `answered` with its answer, whose bytes are valid only until that returns. */
  ask(
    request: string,
    expected: number,
    lost: (error: Error) => void,
    answered: (answer: Buffer) => void,
  ): void {
    this.exchange(request, lost, (status, answer) => {
      if (status === expected) answered(answer);
      else lost(new Error(`expected ${expected}, got: ${answer.toString("utf8")}`));
    });
  }

  exchange(
    request: string,
    lost: (error: Error) => void,
    answered: (status: number, answer: Buffer) => void,
  ): void {
    this.#awaitLoss(lost);
    this.#onAnswer = answered;
    this.#socket.write(request, "latin1");
  }

  close(): void {
    this.#onLost = () => {};
    this.#socket.destroy();
  }

  /** Registers `reject` for the loss of the connection; calls it at once if the connection has been lost already. */
  #awaitLoss(reject: (error: Error) => void): void {
    this.#onLost = reject;
    if (this.#lost !== undefined) reject(this.#lost);
  }

  #receive(piece: Buffer): void {
    const received = this.#partial === undefined ? piece : Buffer.concat([this.#partial, piece]);
    const head = received.indexOf(headEnd);
    if (head === -1 || !isWhole(received, head)) {
      // Copied because the receive buffer is reused.
      this.#partial = Buffer.from(received);
      return;
    }
    this.#partial = undefined;
    this.#onAnswer(statusOf(received), received);
  }
}

const zero = 0x30;

/** Parses the status line `HTTP/1.1 200 OK`. */
function statusOf(answer: Buffer): number {
  const digit = (index: number) => (answer[index] ?? zero) - zero;
  return digit(9) * 100 + digit(10) * 10 + digit(11);
}

function isWhole(answer: Buffer, head: number): boolean {
  const field = answer.indexOf(lengthField);
  if (field !== -1 && field < head) {
    return answer.length >= head + headEnd.length + digitsAt(answer, field + lengthField.length);
  }
  const chunked = answer.indexOf(chunkedField);
  if (chunked === -1 || chunked > head) throw new Error(`a response without its length: ${answer}`);
  // Only JSON is sent chunked, and it contains no line breaks, so the end marker cannot be part of the content.
  return answer.indexOf(lastChunk, head + headEnd.length - 2) !== -1;
}

function digitsAt(answer: Buffer, start: number): number {
  let value = 0;
  for (let index = start; index < answer.length; index++) {
    const digit = (answer[index] ?? 0) - zero;
    if (digit < 0 || digit > 9) break;
    value = value * 10 + digit;
  }
  return value;
}
