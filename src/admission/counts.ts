/** Counts requests by key, in windows of a minute: the basis of all rate limits. */

import { LRUCache } from "lru-cache";
import { atMost } from "../cache-size.ts";

export interface Counts {
  /**
   * Counts one request. `consumedPoints` is the count including it, `msBeforeNext` the time left of the key's minute:
   * `secondsLeft` of it is what callers are told.
   */
  consume(key: string): Promise<{ readonly consumedPoints: number; readonly msBeforeNext: number }>;
}

/** Returns the counts under a name, separate from those of every other name. */
export type CountsOf = (name: string) => Counts;

export const windowSeconds = 60;

/** Seconds until a key's minute is over. */
export function secondsLeft(msBeforeNext: number): number {
  return Math.max(0, Math.ceil(msBeforeNext / 1000));
}

/**
 * Keys of one name that are counted at a time, 10 MiB of them. Clients' addresses are keys, and an attacker may have any number
 * of those; the keys that were counted last stay.
 */
export const mostKeys = 50_000;

/** Counts of this process alone, by its monotonic clock. */
export const ownCounts: CountsOf = () => {
  const minutes = new LRUCache<string, { readonly endsAt: number; count: number }>(atMost(mostKeys));
  return {
    async consume(key) {
      const now = performance.now();
      const running = minutes.get(key);
      if (running !== undefined && running.endsAt > now) {
        running.count += 1;
        return { consumedPoints: running.count, msBeforeNext: running.endsAt - now };
      }
      const msBeforeNext = windowSeconds * 1000;
      minutes.set(key, { endsAt: now + msBeforeNext, count: 1 });
      return { consumedPoints: 1, msBeforeNext };
    },
  };
};
