import { setTimeout as delay } from "node:timers/promises";
import { type CodeOccupancy, codeQuarantineHours } from "../core/code-allocation.ts";
import type { CodeFormat } from "../core/project.ts";
import { type Database, runStatement } from "./database.ts";
import { expiredUpTo } from "./expiry.ts";

export const codeQuarantine = `interval '${codeQuarantineHours} hours'`;

/** Whether a code of `table` may be reused or deleted: it is past its quarantine, and the expiry has looked at it. */
export function isReleasable(table: string): string {
  return `${table}.expires_at <= now() - ${codeQuarantine} AND ${table}.expires_at <= (${expiredUpTo})`;
}

/** An occupancy count that is refreshed periodically. */
export interface CountedOccupancy extends CodeOccupancy {
  refresh(): Promise<void>;
  start(onError: (error: unknown) => void): void;
  stop(): void;
}

interface Count {
  pending: number;
  barred: number;
}

/**
 * The table is counted in slices of this many blocks, each in some milliseconds: in one statement, 100,000 codes took 100 ms.
 */
const blocksAtOnce = 64;

const blocksStatement = {
  name: "code_blocks",
  text: "SELECT (pg_relation_size('live_code') / current_setting('block_size')::int)::float8",
};

const countStatement = {
  name: "count_codes",
  text: `
SELECT destination, code_format::text, length(code), count(*) FILTER (WHERE expires_at > now())::float8, count(*)::float8
FROM live_code
WHERE ctid >= $1::tid AND ctid < $2::tid AND expires_at > now() - ${codeQuarantine}
GROUP BY 1, 2, 3`,
};

const shortestPauseMs = 2_000;
/** Pause after an error, which may have been a statement timeout. */
const troubledMs = 30_000;
/** Pause after a slice, as a multiple of its duration: counting takes at most a fiftieth of the time. */
const pausePerCounting = 50;

/**
 * Counts codes by number, format and length periodically; codes that this process creates in between, and those that it is
 * creating, are added to the count. A code counts as pending until its expiry, even if it was verified or cancelled before:
 * that errs on the side of longer codes, and spares every transition a write.
 */
export function createCodeOccupancy(database: Database): CountedOccupancy {
  let counts = new Map<string, Count>();
  let addedInPass = new Map<string, number>();
  /** Codes whose creation is under way, which no pass resets: it may not have seen their rows. */
  const reserved = new Map<string, number>();
  const stopped = new AbortController();
  const keyOf = (destination: string, format: CodeFormat, length: number) =>
    `${destination} ${format} ${length}`;

  /**
   * A row inserted during a pass may lie in a slice that was already read, or in one that will be. So the codes that this
   * process creates during a pass are added to its result.
   */
  async function count(beforeNext: (tookMs: number) => Promise<void>): Promise<void> {
    const counted = new Map<string, Count>();
    addedInPass = new Map();
    for (let block = 0, tookMs = 0; ; block += blocksAtOnce) {
      if (block > 0) await beforeNext(tookMs);
      const startedAt = performance.now();
      const slice = [`(${block},0)`, `(${block + blocksAtOnce},0)`];
      for (const [destination, format, length, pending, barred] of await runStatement(
        database,
        countStatement,
        slice,
      )) {
        const key = keyOf(destination as string, format as CodeFormat, length as number);
        increase(counted, key, pending as number, barred as number);
      }
      const [size] = await runStatement(database, blocksStatement, []);
      tookMs = performance.now() - startedAt;
      if (block + blocksAtOnce >= (size?.[0] as number)) break;
    }
    // These may have been counted already. Counting them twice is the safe side, and lasts only until the next pass.
    for (const [key, added] of addedInPass) increase(counted, key, added, added);
    counts = counted;
  }

  function increase(into: Map<string, Count>, key: string, pending: number, barred: number): void {
    const count = into.get(key) ?? { pending: 0, barred: 0 };
    into.set(key, { pending: count.pending + pending, barred: count.barred + barred });
  }

  return {
    pending(destination, format, length) {
      const key = keyOf(destination, format, length);
      return (counts.get(key)?.pending ?? 0) + (reserved.get(key) ?? 0);
    },
    barred(destination, format, length) {
      const key = keyOf(destination, format, length);
      return (counts.get(key)?.barred ?? 0) + (reserved.get(key) ?? 0);
    },
    reserve(destination, format, length) {
      const key = keyOf(destination, format, length);
      reserved.set(key, (reserved.get(key) ?? 0) + 1);
      return () => {
        const left = (reserved.get(key) ?? 0) - 1;
        if (left > 0) reserved.set(key, left);
        else reserved.delete(key);
      };
    },
    add(destination, format, length) {
      const key = keyOf(destination, format, length);
      const count = counts.get(key);
      if (count) {
        count.pending++;
        count.barred++;
      } else counts.set(key, { pending: 1, barred: 1 });
      addedInPass.set(key, (addedInPass.get(key) ?? 0) + 1);
    },
    refresh: () => count(async () => {}),
    start(onError) {
      const pause = (milliseconds: number) =>
        delay(milliseconds, undefined, { ref: false, signal: stopped.signal });
      const again = async () => {
        for (;;) {
          await pause(shortestPauseMs);
          try {
            await count((tookMs) => pause(tookMs * pausePerCounting));
          } catch (error) {
            if (stopped.signal.aborted) return;
            onError(error);
            await pause(troubledMs);
          }
        }
      };
      // It rejects only when `stop` aborts a pause.
      again().catch(() => {});
    },
    stop: () => stopped.abort(),
  };
}
