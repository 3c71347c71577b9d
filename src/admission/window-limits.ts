/** What one address and one window may ask of the verification window. */

import { hash } from "node:crypto";
import { isIPv6 } from "node:net";
import { RateLimiterMemory } from "rate-limiter-flexible";
import { Failure } from "../failures.ts";

export interface WindowLimits {
  /** Takes one request of an address and of a window. Refuses with rate_limited. */
  take(address: string, token: string): Promise<void>;
  /** Takes one message of a window's played phone. Refuses with rate_limited. */
  takeMessage(token: string): Promise<void>;
  /** Counts a token that opened nothing. Refuses with rate_limited from the 61st of an address in a minute. */
  takeMiss(address: string): Promise<void>;
}

const windowSeconds = 60;

/** Mobile networks put thousands of people behind one address: what they need is well below this. */
const requestsPerAddress = 3_000;
/** A page, its stream and polls every three seconds, on a few devices. */
const requestsPerToken = 120;
const messagesPerToken = 30;
/** Nobody mistypes this often. A valid token from the same address goes on working. */
const missesPerAddress = 60;

/** Limits of this process alone. */
export function createWindowLimits(): WindowLimits {
  const limiter = (points: number) => {
    const counts = new RateLimiterMemory({ points, duration: windowSeconds, keyPrefix: "" });
    return async (key: string) => {
      try {
        await counts.consume(key);
      } catch (refused) {
        if (refused instanceof Error) throw refused;
        const { msBeforeNext } = refused as { readonly msBeforeNext: number };
        throw new Failure("rate_limited", { retryAfterSeconds: Math.max(1, Math.ceil(msBeforeNext / 1000)) });
      }
    };
  };
  const takeOfAddress = limiter(requestsPerAddress);
  const takeOfToken = limiter(requestsPerToken);
  const takeMessage = limiter(messagesPerToken);
  const takeMiss = limiter(missesPerAddress);

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

/** An IPv6 host has 2^64 addresses to choose from: its network counts as one. */
function networkOf(address: string): string {
  if (!isIPv6(address)) return address;
  const mapped = /^::ffff:([\d.]+)$/i.exec(address)?.[1];
  if (mapped !== undefined) return mapped;
  const [head = "", tail] = address.split("::");
  const groups = head === "" ? [] : head.split(":");
  if (tail !== undefined) {
    const last = tail === "" ? [] : tail.split(":");
    while (groups.length + last.length < 8) groups.push("0");
    groups.push(...last);
  }
  return groups
    .slice(0, 4)
    .map((group) => Number.parseInt(group, 16).toString(16))
    .join(":");
}
