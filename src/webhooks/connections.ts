import type { Pool } from "undici";

/**
 * A pool of connections per origin, for as long as something is sent there, it has a connection, or less than `keptMs` have
 * passed since: an endpoint may announce that it keeps a connection for longer. Not undici's `Agent`: it keeps the pool of an
 * origin whose only exchange was cut while it was connecting, some 23 KiB, for as long as the process lives.
 */
export interface Connections {
  /** Resolves to the origin's pool, and a function to be called when the exchange is over. */
  to(origin: string): Promise<{ readonly pool: Pool; readonly done: () => void }>;
  /** Closes every connection at once; exchanges that begin later fail. */
  close(): Promise<void>;
}

/** Loaded for the first exchange: it takes a fifth of what loading the whole service does, and many send nothing. */
let undici: Promise<typeof import("undici")> | undefined;

interface Kept {
  readonly pool: Pool;
  /** Exchanges in progress. */
  users: number;
  ending: NodeJS.Timeout | undefined;
}

export function keepConnections(options: Pool.Options, keptMs: number): Connections {
  const byOrigin = new Map<string, Kept>();
  let closed = false;

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
    async to(origin) {
      undici ??= import("undici");
      const { Pool } = await undici;
      const kept = byOrigin.get(origin) ?? { pool: new Pool(origin, options), users: 0, ending: undefined };
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
