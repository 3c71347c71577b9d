import { Counter, Gauge, type Registry } from "prom-client";
import type { Backlog } from "../core/backlog.ts";
import { briefBuckets, HistogramFamily } from "./histogram-family.ts";

/** What `pg.Pool` says of itself. */
export interface PoolFigures {
  readonly totalCount: number;
  readonly idleCount: number;
  readonly waitingCount: number;
}

/** Up to the size of the largest batch. */
const sizeBuckets = [1, 2, 4, 8, 16, 32, 64, 128, 256, 500];

/** How long an answer is reused: several scrapers, or an eager one, cost the database no more than this. */
const keptMs = 2_000;
/** How long a scrape waits for the database; it is answered in any case. */
const timeoutMs = 2_000;

export function createStorageMetrics(registry: Registry) {
  const sizes = new HistogramFamily({
    name: "phoneproof_batch_size",
    help: "Requests in a batched statement, by operation",
    buckets: sizeBuckets,
    registry,
  });
  const waits = new HistogramFamily({
    name: "phoneproof_batch_wait_seconds",
    help: "How long the first request of a batch waited for the previous batch, by operation",
    buckets: briefBuckets,
    registry,
  });
  const durations = new HistogramFamily({
    name: "phoneproof_batch_duration_seconds",
    help: "How long a batch took in the database after those before it were done, by operation",
    buckets: briefBuckets,
    registry,
  });
  const lost = new Counter({
    name: "phoneproof_database_connections_lost_total",
    help: "Lost database connections, by purpose",
    labelNames: ["connection"],
    registers: [registry],
  });
  lost.inc({ connection: "pool" }, 0);
  lost.inc({ connection: "notices" }, 0);

  return {
    batch(operation: string) {
      const size = sizes.of({ operation });
      const wait = waits.of({ operation });
      const duration = durations.of({ operation });
      return (items: number, waitedMs: number, tookMs: number): void => {
        size.observe(items);
        wait.observe(waitedMs / 1_000);
        duration.observe(tookMs / 1_000);
      };
    },

    connectionLost(connection: "pool" | "notices"): void {
      lost.inc({ connection });
    },

    watchPool(pool: PoolFigures, size: number): void {
      new Gauge({
        name: "phoneproof_database_pool_connections",
        help: "Connections of the pool, idle or busy",
        labelNames: ["state"],
        registers: [registry],
        collect() {
          this.set({ state: "idle" }, pool.idleCount);
          this.set({ state: "busy" }, pool.totalCount - pool.idleCount);
        },
      });
      new Gauge({
        name: "phoneproof_database_pool_size",
        help: "Maximum number of connections in the pool",
        registers: [registry],
        collect() {
          this.set(size);
        },
      });
      new Gauge({
        name: "phoneproof_database_pool_waiting",
        help: "Statements that wait for a connection from the pool",
        registers: [registry],
        collect() {
          this.set(pool.waitingCount);
        },
      });
    },

    /** `isUsable` is what `/readyz` asks: a lock on a table that only jobs need does not count. */
    watchDatabase(isUsable: () => Promise<boolean>): void {
      const latest = askedSeldom(isUsable);
      new Gauge({
        name: "phoneproof_database_up",
        help: "1 if the database has just answered within two seconds, and is writable",
        registers: [registry],
        async collect() {
          this.set((await latest()) === true ? 1 : 0);
        },
      });
    },

    /** Shows figures of the last seconds, or none if the database does not provide them in time. */
    watchBacklog(read: () => Promise<Backlog>): void {
      const backlog = askedSeldom(read);
      const gauge = (name: string, help: string, figureOf: (backlog: Backlog) => number) =>
        new Gauge({
          name,
          help,
          registers: [registry],
          async collect() {
            const found = await backlog();
            this.remove();
            if (found !== null) this.set(figureOf(found));
          },
        });
      gauge(
        "phoneproof_deliveries_oldest_due_seconds",
        "How long the oldest due webhook delivery has been due, in the whole installation",
        ({ oldestDeliverySeconds }) => oldestDeliverySeconds ?? 0,
      );
      gauge(
        "phoneproof_deliveries_due",
        "Due webhook deliveries, in the whole installation, up to 10,000",
        ({ deliveriesDue }) => deliveriesDue,
      );
      gauge(
        "phoneproof_expiry_oldest_due_seconds",
        "How long the oldest pending verification has been past its expiry, in the whole installation",
        ({ oldestExpirySeconds }) => oldestExpirySeconds ?? 0,
      );
      gauge(
        "phoneproof_statistics_behind_seconds",
        "How far counting for the statistics is behind the database's clock, in the whole installation",
        ({ statisticsBehindSeconds }) => statisticsBehindSeconds,
      );
    },
  };
}

/** Returns the last answer, which is at most some seconds old. Null if the database did not give it, or not in time. */
function askedSeldom<T>(ask: () => Promise<T>): () => Promise<T | null> {
  let latest: Promise<T | null> = Promise.resolve(null);
  let askedAt = Number.NEGATIVE_INFINITY;
  let asking = false;

  return () => {
    if (!asking && performance.now() - askedAt > keptMs) {
      askedAt = performance.now();
      asking = true;
      latest = ask()
        .catch(() => null)
        .finally(() => {
          asking = false;
        });
    }
    return inTime(latest);
  };
}

function inTime<T>(answer: Promise<T>): Promise<T | null> {
  return new Promise((resolve) => {
    const timer = setTimeout(() => resolve(null), timeoutMs);
    answer.then((found) => {
      clearTimeout(timer);
      resolve(found);
    });
  });
}
