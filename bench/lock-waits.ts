/** Samples, many times a second, how many database connections wait for locks. */

import { setTimeout as delay } from "node:timers/promises";
import type pg from "pg";

const everyMs = 20;

export interface LockWaits {
  readonly samples: number;
  /** Waiting connections, summed over all samples. */
  readonly waiting: number;
  readonly mostAtOnce: number;
}

export function together(seen: readonly LockWaits[]): LockWaits {
  return {
    samples: seen.reduce((sum, { samples }) => sum + samples, 0),
    waiting: seen.reduce((sum, { waiting }) => sum + waiting, 0),
    mostAtOnce: Math.max(0, ...seen.map(({ mostAtOnce }) => mostAtOnce)),
  };
}

/** Samples for as long as `work` takes. */
export async function watchLocks<Result>(
  database: pg.Client,
  work: () => Promise<Result>,
): Promise<{ readonly result: Result; readonly locks: LockWaits }> {
  const locks = { samples: 0, waiting: 0, mostAtOnce: 0 };
  const over = new AbortController();
  const watching = (async () => {
    while (!over.signal.aborted) {
      const { rows } = await database.query<{ waiting: number }>(
        `SELECT count(*)::int4 AS waiting FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event_type = 'Lock'`,
      );
      const waiting = rows[0]?.waiting ?? 0;
      locks.samples += 1;
      locks.waiting += waiting;
      locks.mostAtOnce = Math.max(locks.mostAtOnce, waiting);
      await delay(everyMs, undefined, { signal: over.signal }).catch(() => undefined);
    }
  })();
  watching.catch(() => {});
  try {
    return { result: await work(), locks };
  } finally {
    over.abort();
    await watching;
  }
}
