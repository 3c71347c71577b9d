/** The most of something in total, and for each key. */
export interface Limits {
  readonly inAll: number;
  readonly each: number;
}

/** Limits the number of open streams or calls, in total and per key. */
export class StreamBounds {
  readonly #most: Limits;
  readonly #perKey = new Map<string, number>();
  #open = 0;

  constructor(most: Limits) {
    this.#most = most;
  }

  /** Takes a place. Returns the function that gives it back, to be called once, or the limit that is reached. */
  take(key: string): (() => void) | "each" | "in_all" {
    const before = this.#perKey.get(key) ?? 0;
    if (before >= this.#most.each) return "each";
    if (this.#open >= this.#most.inAll) return "in_all";
    this.#open += 1;
    this.#perKey.set(key, before + 1);
    return () => {
      this.#open -= 1;
      const left = (this.#perKey.get(key) ?? 1) - 1;
      if (left === 0) this.#perKey.delete(key);
      else this.#perKey.set(key, left);
    };
  }
}
