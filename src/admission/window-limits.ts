/**
 * What one address and one window may ask of the verification window.
 *
 * Invariant: what a stranger does from an address keeps nobody there from a window that is open. A token that has lately
 * opened something here is limited by itself; an address limits the tokens that have not, among which a right one cannot be
 * told from a guess before it has been looked up.
 */

import { hash } from "node:crypto";
import { LRUCache } from "lru-cache";
import { Failure } from "../failures.ts";
import type { CountsOf } from "./counts.ts";
import { networkOf } from "./network.ts";

export interface WindowLimits {
  /** Takes one request for a token, before it is looked up. Refuses with rate_limited. */
  take(address: string, token: string): Promise<void>;
  /** Takes one message of a window's played phone. Refuses with rate_limited. */
  takeMessage(token: string): Promise<void>;
  /** Remembers a token that has opened something. */
  opened(token: string): void;
  /**
   * Counts a token that opened nothing, unless it has opened something before: that is no guess. Refuses with rate_limited from
   * the 61st of an address in a minute.
   */
  takeMiss(address: string, token: string): Promise<void>;
}

/** Of tokens that have not opened anything yet. Mobile networks put thousands of people behind one address. */
export const requestsPerAddress = 3_000;
/** A page, its stream and polls every three seconds, on a few devices. */
const requestsPerToken = 120;
const messagesPerToken = 30;
/** Nobody mistypes this often. A right token from the same address goes on working, or each guesser would close it to newcomers. */
const missesPerAddress = 60;
/** As many as a process has streams. One that has been forgotten counts as a new one. */
const rememberedTokens = 20_000;

export function createWindowLimits(countsOf: CountsOf): WindowLimits {
  const limiter = (name: string, perMinute: number) => {
    const counts = countsOf(`window-${name}`);
    return async (key: string) => {
      const { consumedPoints, msBeforeNext } = await counts.consume(key);
      if (consumedPoints > perMinute) {
        throw new Failure("rate_limited", { retryAfterSeconds: Math.max(1, Math.ceil(msBeforeNext / 1000)) });
      }
    };
  };
  const takeOfAddress = limiter("addresses", requestsPerAddress);
  const takeOfToken = limiter("tokens", requestsPerToken);
  const takeMessage = limiter("messages", messagesPerToken);
  const takeMiss = limiter("misses", missesPerAddress);
  const known = new LRUCache<string, true>({ max: rememberedTokens });

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

/** What is asked for may be as long as a URL, and what is remembered of it for a minute must not be. */
const digestOf = (token: string) => hash("sha256", token, "base64url");
