import { Failure, type RateLimitState } from "../failures.ts";
import { type Counts, type CountsOf, secondsLeft, windowSeconds } from "./counts.ts";
import { networkOf } from "./network.ts";

/**
 * A project's rate limits in an environment are separate for each. Every operation other than create and cancel counts as read.
 */
export type RateLimitBucket = "create" | "read" | "cancel";

export interface RateLimits {
  /** Takes one call from the holder's limit per minute. Refuses with rate_limited. */
  take(holder: string, bucket: RateLimitBucket, perMinute: number): Promise<RateLimitState>;
  /** Refuses with rate_limited from an address's 601st failed authentication in a minute. */
  takeFailedAuthentication(address: string): Promise<void>;
}

const failedAuthenticationsPerMinute = 600;

export function createRateLimits(countsOf: CountsOf): RateLimits {
  const calls = countsOf("calls");
  const failures = countsOf("failed-authentications");

  return {
    take: (holder, bucket, perMinute) => taken(calls, bucket + holder, bucket, perMinute),

    async takeFailedAuthentication(address) {
      await taken(failures, networkOf(address), "authentication", failedAuthenticationsPerMinute);
    },
  };
}

/** Takes one of the key's `perMinute`. `name` is the limit's name in the response headers. */
async function taken(counts: Counts, key: string, name: string, perMinute: number): Promise<RateLimitState> {
  const { consumedPoints, msBeforeNext } = await counts.consume(key);
  const seconds = secondsLeft(msBeforeNext);
  const remaining = Math.max(0, perMinute - consumedPoints);
  const rateLimit = {
    policy: `"${name}";q=${perMinute};w=${windowSeconds}`,
    state: `"${name}";r=${remaining};t=${seconds}`,
  };
  if (consumedPoints > perMinute) {
    throw new Failure("rate_limited", { rateLimit, retryAfterSeconds: Math.max(1, seconds) });
  }
  return rateLimit;
}
