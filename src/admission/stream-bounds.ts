/** Counts what is open, in all and by a key, as far as there is room. */
export class StreamBounds {
  readonly #most: { readonly inAll: number; readonly each: number };
  readonly #perKey = new Map<string, number>();
  #open = 0;

  constructor(most: { readonly inAll: number; readonly each: number }) {
    this.#most = most;
  }

  /** Answers what gives the place back, to be called once, or which bound leaves none. */
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
