/** The messages without a receipt, in order, and the position up to which the current connection has sent them. */

export interface Message {
  readonly messageId: string;
}

/** Bounds the memory, and the messages that are sent again after a lost connection. */
const maxWaiting = 1_000;
const maxInRequest = 100;

export class Outbox<M extends Message> {
  #waiting: M[] = [];
  #sent = 0;
  #ended = false;
  #changed = Promise.withResolvers<void>();

  /** Whether every message has its receipt and no more will be added. */
  get done(): boolean {
    return this.#ended && this.#waiting.length === 0;
  }

  /** Waits for room in the outbox. */
  async add(message: M): Promise<void> {
    while (this.#waiting.length >= maxWaiting) await this.#changed.promise;
    this.#waiting.push(message);
    this.#change();
  }

  /** Call when no more messages will be added. */
  end(): void {
    this.#ended = true;
    this.#change();
  }

  /**
   * Makes a new connection send every message without a receipt again: the service recognises by the id what it has accepted.
   */
  startOver(): void {
    this.#sent = 0;
    this.#change();
  }

  /** The next messages to send; empty if all are sent and no more will be added, or if the connection is over. */
  async next(connection: AbortSignal): Promise<M[]> {
    const over = () => this.#change();
    connection.addEventListener("abort", over);
    while (this.#sent === this.#waiting.length && !this.#ended && !connection.aborted)
      await this.#changed.promise;
    connection.removeEventListener("abort", over);
    if (connection.aborted) return [];
    const messages = this.#waiting.slice(this.#sent, this.#sent + maxInRequest);
    this.#sent += messages.length;
    return messages;
  }

  /** Removes a message whose receipt has arrived: only now may your own queue delete it. */
  settle(messageId: string): void {
    const index = this.#waiting.findIndex((message) => message.messageId === messageId);
    if (index === -1) return;
    this.#waiting.splice(index, 1);
    this.#sent = Math.max(0, this.#sent - 1);
    this.#change();
  }

  #change(): void {
    this.#changed.resolve();
    this.#changed = Promise.withResolvers();
  }
}
