import type { CodeOccupancy } from "../core/code-allocation.ts";
import type { CodeFormat } from "../core/project.ts";
import { type Database, inTransaction } from "./database.ts";

/** The counted occupancy, brought up to date from time to time. */
export interface CountedOccupancy extends CodeOccupancy {
  refresh(): Promise<void>;
  start(onError: (error: unknown) => void): void;
  stop(): void;
}

interface Count {
  pending: number;
  barred: number;
}

const countCodesOf = `
SELECT destination, code_format::text AS format, length(code), count(*) FILTER (WHERE expires_at > now())::float8 AS pending,
  count(*)::float8 AS barred
FROM live_code WHERE expires_at > now() - interval '24 hours'
GROUP BY 1, 2, 3`;

interface CountRow {
  readonly destination: string;
  readonly format: CodeFormat;
  readonly length: number;
  readonly pending: number;
  readonly barred: number;
}

/** The whole table is to be read, in one go: what the connections are set to avoid for the hot statements' sake. */
async function countCodes(database: Database): Promise<readonly CountRow[]> {
  const counted = await inTransaction(database, async (client) => {
    await client.query("SET LOCAL enable_seqscan = on");
    return (await client.query<CountRow>(countCodesOf)).rows;
  });
  return counted ?? [];
}

const shortestPauseMs = 2_000;
/** Counting takes at most a fiftieth of the time. */
const pausePerCounting = 50;

/**
 * Counts codes by number, format and length, now and then; what this process adds meanwhile is added here.
 * A code counts as pending until its expiry, even if it was verified or cancelled before: that errs on the
 * side of longer codes, and spares every transition a write.
 */
export function createCodeOccupancy(database: Database): CountedOccupancy {
  let counts = new Map<string, Count>();
  let addedWhileCounting = new Map<string, number>();
  let timer: NodeJS.Timeout | undefined;
  const keyOf = (destination: string, format: CodeFormat, length: number) =>
    `${destination} ${format} ${length}`;

  async function refresh(): Promise<void> {
    addedWhileCounting = new Map();
    const counted = new Map<string, Count>();
    for (const { destination, format, length, pending, barred } of await countCodes(database)) {
      counted.set(keyOf(destination, format, length), { pending, barred });
    }
    // These may have been counted already: twice is the safe side, and only until the next look.
    for (const [key, added] of addedWhileCounting) increase(counted, key, added);
    counts = counted;
  }

  function increase(into: Map<string, Count>, key: string, added: number): void {
    const count = into.get(key) ?? { pending: 0, barred: 0 };
    into.set(key, { pending: count.pending + added, barred: count.barred + added });
  }

  return {
    pending: (destination, format, length) => counts.get(keyOf(destination, format, length))?.pending ?? 0,
    barred: (destination, format, length) => counts.get(keyOf(destination, format, length))?.barred ?? 0,
    add(destination, format, length) {
      const key = keyOf(destination, format, length);
      const count = counts.get(key);
      if (count) {
        count.pending++;
        count.barred++;
      } else counts.set(key, { pending: 1, barred: 1 });
      addedWhileCounting.set(key, (addedWhileCounting.get(key) ?? 0) + 1);
    },
    refresh,
    start(onError) {
      const again = async () => {
        const startedAt = performance.now();
        await refresh().catch(onError);
        const pause = Math.max(shortestPauseMs, (performance.now() - startedAt) * pausePerCounting);
        timer = setTimeout(again, pause);
        timer.unref();
      };
      timer = setTimeout(again, shortestPauseMs);
      timer.unref();
    },
    stop() {
      clearTimeout(timer);
      timer = undefined;
    },
  };
}
