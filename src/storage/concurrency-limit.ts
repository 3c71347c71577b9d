import { Failure } from "../failures.ts";
import type { Database } from "./database.ts";

/**
 * The share of the pool's connections that each kind of unbatched statement may use at once, so that creations always find one.
 */
const share = 1 / 4;
const queueTimeoutMs = 3_000;

/**
 * Runs at most that share of the pool's connections' worth of work at once; the rest queues in order of arrival. Work that has
 * queued for `queueTimeoutMs` is refused with service_unavailable, without having begun.
 */
export function createConcurrencyLimit({ pool }: Database): <T>(work: () => Promise<T>) => Promise<T> {
  let free = Math.max(1, Math.floor(pool.options.max * share));
  const waiting = new Set<() => void>();

  const turn = () =>
    new Promise<void>((resolve, reject) => {
      const take = () => {
        clearTimeout(timer);
        waiting.delete(take);
        resolve();
      };
      const timer = setTimeout(() => {
        waiting.delete(take);
        reject(new Failure("service_unavailable"));
      }, queueTimeoutMs);
      waiting.add(take);
    });

  return async (work) => {
    if (free > 0) free -= 1;
    else await turn();
    try {
      return await work();
    } finally {
      const [next] = waiting;
      if (next) next();
      else free += 1;
    }
  };
}
