/** Counts requests by key, in windows of a minute: the basis of all rate limits. */

import { RateLimiterMemory } from "rate-limiter-flexible";

export interface Counts {
  /** Counts one request. `consumedPoints` is the count including it, `msBeforeNext` the time left of the key's minute. */
  consume(key: string): Promise<{ readonly consumedPoints: number; readonly msBeforeNext: number }>;
}

/** Returns the counts under a name, separate from those of every other name. */
export type CountsOf = (name: string) => Counts;

export const windowSeconds = 60;

/** The library only counts, and the callers compare with their limits, since limits differ by project. */
export const countOnly = { points: Number.MAX_SAFE_INTEGER, duration: windowSeconds };

/** Counts of this process alone. */
export const ownCounts: CountsOf = () => new RateLimiterMemory({ ...countOnly, keyPrefix: "" });
