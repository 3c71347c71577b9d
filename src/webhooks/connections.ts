import { createRequire } from "node:module";
import type { Pool } from "undici";

/**
 * A pool of connections per origin, for as long as something is sent there, it has a connection, or less than `keptMs` have
 * passed since: an endpoint may announce that it keeps a connection for longer. Not undici's `Agent`: it keeps the pool of an
 * origin whose only exchange was cut while it was connecting, some 23 KiB, for as long as the process lives.
 */
export interface Connections {
  /** Returns the origin's pool, and a function to be called when the exchange is over. */
  to(origin: string): { readonly pool: Pool; readonly done: () => void };
  /** Closes every connection at once; exchanges that begin later fail. */
  close(): Promise<void>;
}

/**
 * Loaded for the first exchange: it takes a fifth of what loading the whole service does, and many send nothing. Not by import():
 * Node remembers that one failed, and a process that had no file descriptor left for a moment could never send again.
 */
const loadUndici = () => createRequire(import.meta.url)("undici") as typeof import("undici");

interface Kept {
  readonly pool: Pool;
  /** Exchanges in progress. */
  users: number;
  ending: NodeJS.Timeout | undefined;
}

export function keepConnections(options: Pool.Options, keptMs: number): Connections {
  const byOrigin = new Map<string, Kept>();
  let closed = false;

  function newKept(origin: string): Kept {
    const { Pool } = loadUndici();
    return { pool: new Pool(origin, options), users: 0, ending: undefined };
  }

  function endLater(origin: string, kept: Kept): void {
    kept.ending = setTimeout(end, keptMs, origin, kept).unref();
  }

  function end(origin: string, kept: Kept): void {
    if (kept.pool.stats.connected > 0) {
      endLater(origin, kept);
      return;
    }
    byOrigin.delete(origin);
    // Nothing is in progress; at most a cut exchange is still connecting.
    kept.pool.destroy().catch(() => {});
  }

  return {
    to(origin) {
      const kept = byOrigin.get(origin) ?? newKept(origin);
      byOrigin.set(origin, kept);
      kept.users += 1;
      clearTimeout(kept.ending);
      if (closed) kept.pool.destroy().catch(() => {});
      return {
        pool: kept.pool,
        done() {
          kept.users -= 1;
          if (kept.users === 0) endLater(origin, kept);
        },
      };
    },

    async close() {
      closed = true;
      const pools = [...byOrigin.values()];
      byOrigin.clear();
      for (const { ending } of pools) clearTimeout(ending);
      await Promise.all(pools.map(({ pool }) => pool.destroy()));
    },
  };
}
