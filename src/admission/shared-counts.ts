/**
 * Counts in Redis, shared by all processes.
 *
 * Invariant: no call fails because of Redis, or waits for it longer than `answerTimeoutMs`. After one late answer or error the
 * connection is closed, and everything else that waits on it fails over at once. From then on this process counts by itself and
 * sends Redis nothing until a new connection, opened in the background, has passed a test.
 */

import { createClient, type RedisClientType } from "@redis/client";
import { RateLimiterRedis } from "rate-limiter-flexible";
import { type CountsOf, ownCounts, windowSeconds } from "./counts.ts";

export interface SharedCounts {
  readonly countsOf: CountsOf;
  close(): void;
}

/** About a hundred times the response time of a nearby Redis. */
const answerTimeoutMs = 200;
const connectTimeoutMs = 1_000;
const retryMs = 1_000;

/**
 * The test of a connection: a script that writes, as counting does. A PING would succeed on a replica, with full memory, or
 * without permission to write.
 */
const proof = {
  script: "return redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])",
  options: { keys: ["phoneproof:proof"], arguments: ["1", "60"] },
};

/**
 * The library's script, which counts within a key's minute, but a key that would live longer begins a new one: Redis keeps the
 * time of a key's end by its wall clock, and if that was set back by an hour, a used-up limit would stay used up for an hour.
 */
const countingScript = `
redis.call('set', KEYS[1], 0, 'EX', ARGV[2], 'NX')
if redis.call('pttl', KEYS[1]) > 1000 * ARGV[2] then redis.call('set', KEYS[1], 0, 'EX', ARGV[2]) end
local consumed = redis.call('incrby', KEYS[1], ARGV[1])
local ttl = redis.call('pttl', KEYS[1])
if ttl == -1 then
  redis.call('expire', KEYS[1], ARGV[2])
  ttl = 1000 * ARGV[2]
end
return {consumed, ttl}`;

/** The library only counts, and the callers compare with their limits, since limits differ by project. */
const countOnly = { points: Number.MAX_SAFE_INTEGER, duration: windowSeconds };

type Script = typeof proof.options;

/** Resolves once Redis has proved usable or unusable. */
export async function shareCounts(
  url: string,
  listeners: { readonly onLost: (error: unknown) => void; readonly onFound: () => void },
): Promise<SharedCounts> {
  let connection: RedisClientType | undefined;
  let retry: NodeJS.Timeout | undefined;
  let closed = false;
  /** Whether the current loss has been reported: it is reported once, however many retries fail. */
  let isLossReported = false;

  async function connect(): Promise<void> {
    const next: RedisClientType = createClient({
      url,
      disableOfflineQueue: true,
      // Announcements that Redis Enterprise moves. To ask for them, the client looks up the URL's host as a name, which fails for
      // an IPv6 address.
      maintNotifications: "disabled",
      socket: { connectTimeout: connectTimeoutMs, reconnectStrategy: false },
    });
    next.on("error", (error: unknown) => lose(next, error));
    try {
      await withTimeout(connectTimeoutMs, async () => {
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
    if (isLossReported) listeners.onFound();
    isLossReported = false;
  }

  function lose(lost: RedisClientType, error: unknown): void {
    if (connection !== lost) return;
    connection = undefined;
    abandon(lost, error);
  }

  function abandon(lost: RedisClientType, error: unknown): void {
    lost.destroy();
    if (closed) return;
    if (!isLossReported) listeners.onLost(error);
    isLossReported = true;
    retry = setTimeout(connect, retryMs).unref();
  }

  /** Stands in for the limiter's Redis client. */
  const store = {
    async eval(script: string, options: Script): Promise<unknown> {
      const asked = connection;
      if (asked === undefined) throw new Error("Redis is not connected");
      try {
        return await withTimeout(answerTimeoutMs, () => asked.eval(script, options));
      } catch (error) {
        lose(asked, error);
        throw error;
      }
    },
  };

  await connect();
  return {
    countsOf(name) {
      const shared = new RateLimiterRedis({
        ...countOnly,
        storeClient: store,
        useRedisPackage: true,
        customIncrTtlLuaScript: countingScript,
        keyPrefix: `phoneproof:${name}`,
      });
      const own = ownCounts(name);
      return {
        // It only counts, and so rejects for no other reason than Redis.
        consume: (key) => shared.consume(key).catch(() => own.consume(key)),
      };
    },
    close() {
      closed = true;
      clearTimeout(retry);
      connection?.destroy();
      connection = undefined;
    },
  };
}

/**
 * Rejects after `timeoutMs`. It rejects in setImmediate, after pending I/O was read: an answer that arrived while the event
 * loop was blocked is not late.
 */
function withTimeout<T>(timeoutMs: number, ask: () => Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const late = () => reject(new Error(`no answer within ${timeoutMs} ms`));
    const timer = setTimeout(() => setImmediate(late), timeoutMs);
    ask()
      .then(resolve, reject)
      .finally(() => clearTimeout(timer));
  });
}
