import type { Limits } from "../admission/stream-bounds.ts";

/**
 * Bounds the memory of requests that have begun and are incomplete, in total and per caller: otherwise a sender of
 * messages could begin as many requests as it may open streams, and finish none.
 *
 * Invariant: room is reserved for a whole request or not at all, so a waiting request holds nothing that another waits
 * for.
 */
export class MemoryBudget {
  readonly #most: Limits;
  readonly #takenBy = new Map<string, number>();
  readonly #waiting = new Set<{ readonly key: string; readonly bytes: number; readonly enter: () => void }>();
  #taken = 0;

  /** In bytes. A request that is larger than `each` never enters. */
  constructor(most: Limits) {
    this.#most = most;
  }

  /**
   * Resolves once there is room, in the order of the calls, except that callers at their own limit are skipped. The
   * returned function releases the room.
   */
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
      // At its caller's own limit: it waits, and blocks nobody else.
      if ((this.#takenBy.get(next.key) ?? 0) + next.bytes > this.#most.each) continue;
      // The remaining room is reserved for this request: if smaller ones could overtake it, it might wait for ever.
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
