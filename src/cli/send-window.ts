/** Which messages of an inbound stream may be sent, and how many. */

import type { InboundMessage } from "../gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { CliError } from "./cli-error.ts";
import type { InboundLine } from "./inbound-lines.ts";

/** Limits on the messages without a receipt and on their bytes of input. They bound the memory. */
const windowMessages = 5_000;
const windowBytes = 8 * 1024 * 1024;

const groupMessages = 250;
/**
 * The service waits for ten seconds for the rest of a group that has begun to arrive. So a group is also at most a quarter of what
 * may be in flight.
 */
const groupBytes = 256 * 1024;

/**
 * Limit on the bytes of input that are sent and without a receipt, on a new connection. It doubles each time that a receipt
 * comes quickly while more than half of it is used. On a slow network more would only wait to be sent, and keepalive pings
 * behind it: unanswered in time, they would end a connection that works.
 */
const firstFlightBytes = 32 * 1024;
const quickReceiptMs = 2_000;

/** The messages without a receipt, oldest first, and the position up to which the current connection has sent them. */
export class SendWindow {
  #lines: InboundLine[] = [];
  /** Lines before this index have their receipts; they are removed from the array in batches. */
  #head = 0;
  #sent = 0;
  #bytes = 0;
  /** Bytes of those that the current connection has sent, and their limit. */
  #flightBytes = 0;
  #mostFlightBytes = firstFlightBytes;
  /** A group that was sent `at` a time: `acknowledged` will be this once it has its receipts. */
  #timed: { readonly acknowledged: number; readonly at: number } | undefined;
  #ended = false;
  #waitingSince = performance.now();
  #idle = false;
  #changed: PromiseWithResolvers<void> | undefined;

  acknowledged = 0;

  get size(): number {
    return this.#lines.length - this.#head;
  }

  get full(): boolean {
    return this.size >= windowMessages || this.#bytes >= windowBytes;
  }

  get done(): boolean {
    return this.#ended && this.size === 0;
  }

  /** Whether there were messages, and all have their receipts. */
  get isAcknowledged(): boolean {
    return this.done && this.acknowledged > 0;
  }

  add(line: InboundLine): void {
    if (this.size === 0) this.#waitingSince = performance.now();
    this.#lines.push(line);
    this.#bytes += line.size;
    this.#change();
  }

  end(): void {
    this.#ended = true;
    this.#change();
  }

  startOver(): void {
    this.#sent = this.#head;
    this.#flightBytes = 0;
    this.#mostFlightBytes = firstFlightBytes;
    this.#timed = undefined;
  }

  /** The next messages to send, at most a group; empty if the input has ended and everything is sent. */
  nextGroup(): InboundMessage[] {
    const messages: InboundMessage[] = [];
    let bytes = 0;
    const room = this.#mostFlightBytes - this.#flightBytes;
    const mostBytes = Math.min(room, this.#mostFlightBytes / 4, groupBytes);
    while (this.#sent < this.#lines.length && messages.length < groupMessages) {
      const line = this.#lines[this.#sent];
      if (line?.message === undefined) break;
      if (messages.length > 0 && bytes + line.size > mostBytes) break;
      bytes += line.size;
      messages.push(line.message);
      this.#sent += 1;
    }
    this.#flightBytes += bytes;
    if (this.#flightBytes > this.#mostFlightBytes / 2) {
      this.#timed ??= { acknowledged: this.acknowledged + this.#sent - this.#head, at: performance.now() };
    }
    return messages;
  }

  /** Returns the line that a receipt is for. A receipt for any other line than the oldest sent violates the promised order. */
  take(messageId: string): InboundLine {
    const line = this.#lines[this.#head];
    if (line?.message?.messageId !== messageId || this.#head >= this.#sent) {
      throw new CliError(
        1,
        "receipt_out_of_order",
        `the service sent a receipt out of order, for '${messageId}'`,
      );
    }
    this.#head += 1;
    this.#bytes -= line.size;
    this.#flightBytes -= line.size;
    this.acknowledged += 1;
    this.#growFlight();
    if (this.#head >= windowMessages) {
      this.#lines = this.#lines.slice(this.#head);
      this.#sent -= this.#head;
      this.#head = 0;
    }
    this.#change();
    return line;
  }

  /** While `work` passes receipts on, the service is not considered overdue, however slow the reader of the output is. */
  async whileIdle(work: Promise<void>): Promise<void> {
    this.#idle = true;
    await work;
    this.#idle = false;
    this.restartWait();
  }

  /** Restarts the time that the service has for its next receipt. */
  restartWait(): void {
    this.#waitingSince = performance.now();
  }

  /** Milliseconds since the service last sent a receipt, or since a message was first outstanding; 0 if none is outstanding. */
  waitingMs(): number {
    return this.size === 0 || this.#idle ? 0 : performance.now() - this.#waitingSince;
  }

  async untilRoom(signal: AbortSignal): Promise<void> {
    while (this.full) await this.#untilChange(signal);
  }

  async untilAcknowledged(signal: AbortSignal): Promise<void> {
    while (!this.isAcknowledged) await this.#untilChange(signal);
  }

  #growFlight(): void {
    if (this.#timed === undefined || this.acknowledged < this.#timed.acknowledged) return;
    const isQuick = performance.now() - this.#timed.at < quickReceiptMs;
    if (isQuick) this.#mostFlightBytes = Math.min(2 * this.#mostFlightBytes, windowBytes);
    this.#timed = undefined;
  }

  /** Resolves when there is something to send, and room for it in flight, or nothing more will come. */
  async untilSendable(signal: AbortSignal): Promise<void> {
    const mustWait = () =>
      this.#sent < this.#lines.length ? this.#flightBytes >= this.#mostFlightBytes : !this.#ended;
    while (mustWait()) await this.#untilChange(signal);
  }

  #change(): void {
    this.#changed?.resolve();
    this.#changed = undefined;
  }

  async #untilChange(signal: AbortSignal): Promise<void> {
    signal.throwIfAborted();
    this.#changed ??= Promise.withResolvers();
    const aborted = Promise.withResolvers<never>();
    const abort = () => aborted.reject(signal.reason);
    signal.addEventListener("abort", abort, { once: true });
    try {
      await Promise.race([this.#changed.promise, aborted.promise]);
    } finally {
      signal.removeEventListener("abort", abort);
    }
  }
}
