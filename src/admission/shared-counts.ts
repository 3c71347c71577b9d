/**
 * Counts that all processes share, in Redis.
 *
 * Invariant: no call fails or waits because of Redis. An answer that is late or an error is the last that is waited
 * for: its connection is given up, and with it whatever else was waiting there. From then on this process counts by
 * itself, and asks Redis for nothing until a new connection has proved itself in the background.
 */

import { createClient, type RedisClientType } from "@redis/client";
import { RateLimiterMemory, RateLimiterRedis } from "rate-limiter-flexible";
import { type CountsOf, countOnly } from "./counts.ts";

export interface SharedCounts {
  readonly countsOf: CountsOf;
  close(): void;
}

/** Some hundred times what a Redis near by takes. */
const answerPatienceMs = 200;
const connectPatienceMs = 1_000;
const retryMs = 1_000;

/** A script that writes, as counting is: a replica, a full memory or a narrow account would let a PING through. */
const proof = {
  script: "return redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])",
  options: { keys: ["phoneproof:proof"], arguments: ["1", "60"] },
};

type Script = typeof proof.options;

/** Answers when Redis is there, or has shown that it is not. */
export async function shareCounts(
  url: string,
  listeners: { readonly onLost: (error: unknown) => void; readonly onFound: () => void },
): Promise<SharedCounts> {
  let connection: RedisClientType | undefined;
  let retry: NodeJS.Timeout | undefined;
  let closed = false;
  /** Told once, however often it is tried. */
  let told = false;

  async function connect(): Promise<void> {
    const next: RedisClientType = createClient({
      url,
      disableOfflineQueue: true,
      socket: { connectTimeout: connectPatienceMs, reconnectStrategy: false },
    });
    next.on("error", (error: unknown) => lose(next, error));
    try {
      await soon(connectPatienceMs, async () => {
        await next.connect();
        await next.eval(proof.script, proof.options);
      });
    } catch (error) {
      abandon(next, error);
      return;
    }
    if (closed || !next.isReady) {
      abandon(next, new Error("the connection was closed at once"));
      return;
    }
    connection = next;
    if (told) listeners.onFound();
    told = false;
  }

  function lose(lost: RedisClientType, error: unknown): void {
    if (connection !== lost) return;
    connection = undefined;
    abandon(lost, error);
  }

  function abandon(lost: RedisClientType, error: unknown): void {
    lost.destroy();
    if (closed) return;
    if (!told) listeners.onLost(error);
    told = true;
    retry = setTimeout(connect, retryMs).unref();
  }

  /** What the limiter has instead of a client. Whatever it rejects with, the limiter counts in memory. */
  const store = {
    async eval(script: string, options: Script): Promise<unknown> {
      const asked = connection;
      if (asked === undefined) throw new Error("Redis is not there");
      try {
        return await soon(answerPatienceMs, () => asked.eval(script, options));
      } catch (error) {
        lose(asked, error);
        throw error;
      }
    },
  };

  await connect();
  return {
    countsOf: (name) =>
      new RateLimiterRedis({
        ...countOnly,
        storeClient: store,
        useRedisPackage: true,
        keyPrefix: `phoneproof:${name}`,
        insuranceLimiter: new RateLimiterMemory({ ...countOnly, keyPrefix: "" }),
      }),
    close() {
      closed = true;
      clearTimeout(retry);
      connection?.destroy();
      connection = undefined;
    },
  };
}

/** An answer that was there while this process was too busy to look is not late: it is looked at before the end. */
function soon<T>(patienceMs: number, ask: () => Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const late = () => reject(new Error(`no answer within ${patienceMs} ms`));
    const timer = setTimeout(() => setImmediate(late), patienceMs);
    ask()
      .then(resolve, reject)
      .finally(() => clearTimeout(timer));
  });
}
