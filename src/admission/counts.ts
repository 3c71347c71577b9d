/** Counts requests by key, in windows of a minute: the basis of all rate limits. */

import { RateLimiterMemory } from "rate-limiter-flexible";

export interface Counts {
  /**
   * Counts one request. `consumedPoints` is the count including it, `msBeforeNext` the time left of the key's minute, as the
   * library computes it from the wall clock: `secondsLeft` of it is what callers are told.
   */
  consume(key: string): Promise<{ readonly consumedPoints: number; readonly msBeforeNext: number }>;
}

/** Returns the counts under a name, separate from those of every other name. */
export type CountsOf = (name: string) => Counts;

export const windowSeconds = 60;

/**
 * Seconds until a key's minute is over: never more than the minute. If the process's clock was set back by an hour, the library
 * reports an hour, but its timer, or Redis, ends the minute in time.
 */
export function secondsLeft(msBeforeNext: number): number {
  return Math.min(windowSeconds, Math.max(0, Math.ceil(msBeforeNext / 1000)));
}

/** The library only counts, and the callers compare with their limits, since limits differ by project. */
export const countOnly = { points: Number.MAX_SAFE_INTEGER, duration: windowSeconds };

/** Counts of this process alone. */
export const ownCounts: CountsOf = () => new RateLimiterMemory({ ...countOnly, keyPrefix: "" });
