import { Failure } from "../failures.ts";
import { afterRunning } from "../running-time.ts";
import type { Database } from "./database.ts";

/**
 * The share of the pool's connections that each kind of unbatched statement may use at once, however much is asked for. The smallest
 * pool has four.
 */
const share = 1 / 4;
const queueTimeoutMs = 3_000;

/** Runs the work for a project, or for whatever else takes turns, once its turn comes. */
export type ConcurrencyLimit = <T>(projectId: string, work: () => Promise<T>) => Promise<T>;

/**
 * Runs at once as much work as that share of the pool has connections, and for each project one piece; the rest queues. One
 * at a time is enough for a hundred lists a second of a thousand verifications each, and between them this process gets to all
 * other calls. Projects take turns, so that one that asks for much waits for itself only. Work that has queued for
 * `queueTimeoutMs` is refused with service_unavailable, without having begun.
 */
export function createConcurrencyLimit({ pool }: Database): ConcurrencyLimit {
  let free = Math.floor(pool.options.max * share);
  const running = new Set<string>();
  /** What waits, by project, the project first whose last turn is the longest ago. */
  const queues = new Map<string, Set<() => void>>();

  const mayBegin = (projectId: string) => free > 0 && !running.has(projectId);

  function begin(projectId: string): void {
    free -= 1;
    running.add(projectId);
  }

  function end(projectId: string): void {
    free += 1;
    running.delete(projectId);
    beginNext();
  }

  function beginNext(): void {
    for (const [projectId, queue] of queues) {
      if (!mayBegin(projectId)) continue;
      const [next] = queue;
      next?.();
      return;
    }
  }

  function turn(projectId: string): Promise<void> {
    return new Promise((resolve, reject) => {
      const queue = queues.get(projectId) ?? new Set();
      const leave = () => {
        timer.cancel();
        queue.delete(take);
        if (queue.size === 0) queues.delete(projectId);
      };
      const take = () => {
        leave();
        if (queues.delete(projectId)) queues.set(projectId, queue);
        begin(projectId);
        resolve();
      };
      const timer = afterRunning(queueTimeoutMs, () => {
        leave();
        reject(new Failure("service_unavailable"));
      });
      queues.set(projectId, queue.add(take));
    });
  }

  return async (projectId, work) => {
    if (mayBegin(projectId)) begin(projectId);
    else await turn(projectId);
    try {
      return await work();
    } finally {
      end(projectId);
    }
  };
}
