/** What one address and one window may ask of the verification window. */

import { hash } from "node:crypto";
import { Failure } from "../failures.ts";
import type { CountsOf } from "./counts.ts";
import { networkOf } from "./network.ts";

export interface WindowLimits {
  /** Takes one request of an address and of a window. Refuses with rate_limited. */
  take(address: string, token: string): Promise<void>;
  /** Takes one message of a window's played phone. Refuses with rate_limited. */
  takeMessage(token: string): Promise<void>;
  /** Counts a token that opened nothing. Refuses with rate_limited from the 61st of an address in a minute. */
  takeMiss(address: string): Promise<void>;
}

/** Mobile networks put thousands of people behind one address: what they need is well below this. */
export const requestsPerAddress = 3_000;
/** A page, its stream and polls every three seconds, on a few devices. */
const requestsPerToken = 120;
const messagesPerToken = 30;
/** Nobody mistypes this often. A valid token from the same address goes on working. */
export const missesPerAddress = 60;

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

  return {
    async take(address, token) {
      await takeOfAddress(networkOf(address));
      await takeOfToken(digestOf(token));
    },
    takeMessage: (token) => takeMessage(digestOf(token)),
    takeMiss: (address) => takeMiss(networkOf(address)),
  };
}

/** What is asked for may be as long as a URL, and what is remembered of it for a minute must not be. */
const digestOf = (token: string) => hash("sha256", token, "base64url");
