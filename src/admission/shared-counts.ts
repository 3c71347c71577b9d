/**
 * Counts in Redis, shared by all processes.
 *
 * Invariant: no call fails because of Redis, or waits for it longer than `answerTimeoutMs`, or ten turns of the event loop in a
 * process that is slow itself. After one late answer or error the connection is closed, and everything else that waits on it fails
 * over at once. From then on this process counts by itself and sends Redis nothing until a new connection, opened in the
 * background, has passed a test: it counts, and as fast as a call needs.
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
/** A timeout is counted in so many steps: see `withTimeout`. */
const timeoutSteps = 10;
const retryMs = 1_000;
/**
 * How long a new connection must have worked until its Redis is reported as back. One that can be reached again and again, but
 * not used for long, stays reported as lost.
 */
const settledMs = 5_000;
/** Causes of one loss that are reported: an error may contain what differs each time. */
const mostCauses = 5;
/**
 * How often the connection is tested while no call uses it. Redis, and what is between, may close a connection that is idle, which
 * is no loss: proxies are often set to do so after half a minute. And a lost Redis is to be reported before the next call has to
 * wait for it.
 */
const idleTestMs = 20_000;

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

interface Script {
  readonly script: string;
  readonly options: { keys: string[]; arguments: string[] };
}

/**
 * The test of a connection: it counts. A PING, or any other command, could succeed where counting fails: on a replica, with full
 * memory, or for a user who may not use each command of the script.
 */
const proof: Script = {
  script: countingScript,
  options: { keys: ["phoneproof:proof"], arguments: ["1", String(windowSeconds)] },
};

/** Refuses the answer of something that is no Redis: a limit would never be reached with it. */
async function count(redis: RedisClientType, { script, options }: Script): Promise<unknown> {
  const answer: unknown = await withTimeout(answerTimeoutMs, () => redis.eval(script, options));
  const isCount = Array.isArray(answer) && answer.length === 2 && answer.every(Number.isSafeInteger);
  if (!isCount) throw new Error("the answer is no count");
  return answer;
}

/** Resolves once Redis has proved usable or unusable. */
export async function shareCounts(
  url: string,
  listeners: {
    /** Called for each cause of a loss. */
    readonly onLost: (error: unknown) => void;
    readonly onFound: () => void;
  },
): Promise<SharedCounts> {
  let connection: RedisClientType | undefined;
  let retry: NodeJS.Timeout | undefined;
  let settling: NodeJS.Timeout | undefined;
  let closed = false;
  /**
   * What has been reported of the current loss. Each cause is, once, however many retries fail with it: the end of a connection says
   * nothing about why its successors fail.
   */
  const reported = new Set<string>();

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
      await withTimeout(connectTimeoutMs, () => next.connect());
      await count(next, proof);
    } catch (error) {
      abandon(next, error);
      return;
    }
    if (closed || !next.isReady) {
      abandon(next, new Error("the connection was closed at once"));
      return;
    }
    connection = next;
    if (reported.size > 0) settling = setTimeout(settle, settledMs).unref();
  }

  function settle(): void {
    reported.clear();
    listeners.onFound();
  }

  function lose(lost: RedisClientType, error: unknown): void {
    if (connection !== lost) return;
    connection = undefined;
    clearTimeout(settling);
    abandon(lost, error);
  }

  function abandon(lost: RedisClientType, error: unknown): void {
    lost.destroy();
    if (closed) return;
    const cause = String(error);
    if (reported.size < mostCauses && !reported.has(cause)) {
      reported.add(cause);
      listeners.onLost(error);
    }
    retry = setTimeout(connect, retryMs).unref();
  }

  /** Stands in for the limiter's Redis client. */
  const store = {
    async eval(script: string, options: Script["options"]): Promise<unknown> {
      const asked = connection;
      if (asked === undefined) throw new Error("Redis is not connected");
      try {
        return await count(asked, { script, options });
      } catch (error) {
        lose(asked, error);
        throw error;
      }
    },
  };

  await connect();
  const testing = setInterval(() => void store.eval(proof.script, proof.options).catch(() => {}), idleTestMs);
  testing.unref();
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
      clearTimeout(settling);
      clearInterval(testing);
      connection?.destroy();
      connection = undefined;
    },
  };
}

/**
 * Rejects after `timeoutMs`, counted in steps, of which a turn of the event loop is one at most: a command is sent at the end of a
 * turn, or of a later one if there are many, and in a process that lacks CPU each turn alone may take as long as Redis may. It
 * rejects in setImmediate, after pending I/O was read: an answer that arrived while the event loop was blocked is not late.
 */
function withTimeout<T>(timeoutMs: number, ask: () => Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const late = () => reject(new Error(`no answer within ${timeoutMs} ms`));
    let stepsLeft = timeoutSteps;
    const nextStep = () => {
      if (stepsLeft-- === 0) setImmediate(late);
      else timer = setTimeout(nextStep, timeoutMs / timeoutSteps);
    };
    let timer: NodeJS.Timeout;
    nextStep();
    ask()
      .then(resolve, reject)
      .finally(() => clearTimeout(timer));
  });
}
