/**
 * Rate limits of the verification window, per client address and per window.
 *
 * Invariant: requests by a stranger never lock others at the same address out of a window that is open. A token that has
 * recently opened a window on this process is limited by itself; the address's limit applies only to other tokens, among which
 * a valid one cannot be distinguished from a guess before it is looked up.
 */

import { hash } from "node:crypto";
import { LRUCache } from "lru-cache";
import { atMost } from "../cache-size.ts";
import { Failure } from "../failures.ts";
import { type CountsOf, secondsLeft } from "./counts.ts";
import { networkOf } from "./network.ts";

export interface WindowLimits {
  /** Takes one request for a token, before the token is looked up. Refuses with rate_limited. */
  take(address: string, token: string): Promise<void>;
  /** Takes one message of a window's simulated phone. Refuses with rate_limited. */
  takeMessage(token: string): Promise<void>;
  /** Remembers a token as valid. */
  opened(token: string): void;
  /**
   * Counts a token that opened nothing as a guess, unless it was valid before. Refuses with rate_limited from the 61st of an
   * address in a minute.
   */
  takeMiss(address: string, token: string): Promise<void>;
}

/** For tokens not known as valid. Mobile networks put thousands of people behind one address. */
export const requestsPerAddress = 3_000;
/** A page, its stream, and a poll every three seconds, on a few devices. */
const requestsPerToken = 120;
const messagesPerToken = 30;
/**
 * Nobody mistypes this often. Valid tokens from the address keep working: else one guesser would lock out all newcomers there.
 */
const missesPerAddress = 60;
/** As many as a process may have streams. A token dropped from this cache is limited as a new one. */
const rememberedTokens = 20_000;

export function createWindowLimits(countsOf: CountsOf): WindowLimits {
  const limiter = (name: string, perMinute: number) => {
    const counts = countsOf(`window-${name}`);
    return async (key: string) => {
      const { consumedPoints, msBeforeNext } = await counts.consume(key);
      if (consumedPoints > perMinute) {
        throw new Failure("rate_limited", { retryAfterSeconds: Math.max(1, secondsLeft(msBeforeNext)) });
      }
    };
  };
  const takeOfAddress = limiter("addresses", requestsPerAddress);
  const takeOfToken = limiter("tokens", requestsPerToken);
  const takeMessage = limiter("messages", messagesPerToken);
  const takeMiss = limiter("misses", missesPerAddress);
  const known = new LRUCache<string, true>(atMost(rememberedTokens));

  return {
    async take(address, token) {
      const digest = digestOf(token);
      if (known.get(digest) === undefined) await takeOfAddress(networkOf(address));
      await takeOfToken(digest);
    },
    takeMessage: (token) => takeMessage(digestOf(token)),
    opened(token) {
      known.set(digestOf(token), true);
    },
    async takeMiss(address, token) {
      if (!known.delete(digestOf(token))) await takeMiss(networkOf(address));
    },
  };
}

/** Tokens are remembered as digests: a requested token may be as long as a URL and its count is kept for a minute. */
const digestOf = (token: string) => hash("sha256", token, "base64url");
