/** How often each key has come in its minute: what all limits are made of. */

import { RateLimiterMemory } from "rate-limiter-flexible";

export interface Counts {
  /** Counts once more. `consumedPoints` is the count after it, `msBeforeNext` what is left of the key's minute. */
  consume(key: string): Promise<{ readonly consumedPoints: number; readonly msBeforeNext: number }>;
}

/** The counts of a name, apart from those of every other. */
export type CountsOf = (name: string) => Counts;

export const windowSeconds = 60;

/** Allowances differ by project, so that the library only counts and the comparison is made by the limits. */
export const countOnly = { points: Number.MAX_SAFE_INTEGER, duration: windowSeconds };

/** Those of this process alone. */
export const ownCounts: CountsOf = () => new RateLimiterMemory({ ...countOnly, keyPrefix: "" });
