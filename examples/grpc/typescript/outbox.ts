/** Messages without a receipt, in their order, and how far into them the present connection has sent. */

export interface Message {
  readonly messageId: string;
}

/** Bounds the memory, and what is sent again after a cut. */
const maxWaiting = 1_000;
const maxInRequest = 100;

export class Outbox<M extends Message> {
  #waiting: M[] = [];
  #sent = 0;
  #ended = false;
  #changed = Promise.withResolvers<void>();

  /** Whether every message has its receipt and no more will come. */
  get done(): boolean {
    return this.#ended && this.#waiting.length === 0;
  }

  /** Waits for room. */
  async add(message: M): Promise<void> {
    while (this.#waiting.length >= maxWaiting) await this.#changed.promise;
    this.#waiting.push(message);
    this.#change();
  }

  /** No more will come. */
  end(): void {
    this.#ended = true;
    this.#change();
  }

  /** A new connection sends everything without a receipt again: the service knows by the id what it has taken. */
  startOver(): void {
    this.#sent = 0;
    this.#change();
  }

  /** The next to send; none where everything is sent and no more will come, or the connection is over. */
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

  /** Its receipt has come: only now may your own queue forget it. */
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
