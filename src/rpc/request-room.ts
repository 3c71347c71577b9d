/**
 * What requests that have begun and are not whole yet may take of this process's memory, all of them together and each caller's:
 * else whoever may send messages could begin as many as it may open streams, and finish none.
 *
 * Invariant: room is taken for a whole request or not at all, so those who wait hold nothing that another waits for.
 */
export class RequestRoom {
  readonly #most: { readonly inAll: number; readonly each: number };
  readonly #takenBy = new Map<string, number>();
  readonly #waiting = new Set<{ readonly key: string; readonly bytes: number; readonly enter: () => void }>();
  #taken = 0;

  /** In bytes. A request that is larger than `each` never enters. */
  constructor(most: { readonly inAll: number; readonly each: number }) {
    this.#most = most;
  }

  /** Resolves once there is room, in the order of asking but for callers who have theirs. What it answers gives the room back. */
  async enter(key: string, bytes: number): Promise<() => void> {
    await new Promise<void>((resolve) => {
      this.#waiting.add({ key, bytes, enter: resolve });
      this.#letIn();
    });
    return () => {
      this.#take(key, -bytes);
      this.#letIn();
    };
  }

  #letIn(): void {
    for (const next of this.#waiting) {
      // Waits for its own, and keeps nobody else from theirs.
      if ((this.#takenBy.get(next.key) ?? 0) + next.bytes > this.#most.each) continue;
      // What others leave is for it: smaller ones would go in past it for ever.
      if (this.#taken + next.bytes > this.#most.inAll) return;
      this.#waiting.delete(next);
      this.#take(next.key, next.bytes);
      next.enter();
    }
  }

  #take(key: string, bytes: number): void {
    this.#taken += bytes;
    const own = (this.#takenBy.get(key) ?? 0) + bytes;
    if (own === 0) this.#takenBy.delete(key);
    else this.#takenBy.set(key, own);
  }
}
