import { Failure, type RateLimitState } from "../failures.ts";
import type { RateLimitBucket } from "./admission.ts";
import { type CountsOf, windowSeconds } from "./counts.ts";
import { networkOf } from "./network.ts";

export interface RateLimits {
  /** Takes one call from a holder's allowance a minute. Refuses with rate_limited. */
  take(holder: string, bucket: RateLimitBucket, perMinute: number): Promise<RateLimitState>;
  /** Refuses with rate_limited from the 601st failed authentication of an address in a minute. */
  takeFailedAuthentication(address: string): Promise<void>;
}

export const failedAuthenticationsPerMinute = 600;

export function createRateLimits(countsOf: CountsOf): RateLimits {
  const calls = countsOf("calls");
  const failures = countsOf("failed-authentications");

  return {
    async take(holder, bucket, perMinute) {
      const { consumedPoints, msBeforeNext } = await calls.consume(bucket + holder);
      const secondsLeft = Math.ceil(msBeforeNext / 1000);
      const remaining = Math.max(0, perMinute - consumedPoints);
      const rateLimit = {
        policy: `"${bucket}";q=${perMinute};w=${windowSeconds}`,
        state: `"${bucket}";r=${remaining};t=${secondsLeft}`,
      };
      if (consumedPoints > perMinute) {
        throw new Failure("rate_limited", { rateLimit, retryAfterSeconds: Math.max(1, secondsLeft) });
      }
      return rateLimit;
    },

    async takeFailedAuthentication(address) {
      const { consumedPoints, msBeforeNext } = await failures.consume(networkOf(address));
      if (consumedPoints > failedAuthenticationsPerMinute) {
        const secondsLeft = Math.max(1, Math.ceil(msBeforeNext / 1000));
        const rateLimit = {
          policy: `"authentication";q=${failedAuthenticationsPerMinute};w=${windowSeconds}`,
          state: `"authentication";r=0;t=${secondsLeft}`,
        };
        throw new Failure("rate_limited", { rateLimit, retryAfterSeconds: secondsLeft });
      }
    },
  };
}
