import { syncBuiltinESMExports } from "node:module";
import timers from "node:timers/promises";
import type pg from "pg";
import { expect, onTestFinished, test, vi } from "vitest";
import { createCodeOccupancy } from "../../src/storage/code-occupancy.ts";
import type { Database } from "../../src/storage/database.ts";
import { openOwnDatabase } from "../harness/database.ts";

const blocks = 200;

/** A table of four slices without any codes; `onSlice` is called when one is read. */
function emptyTable(onSlice: (slice: number) => void): Database {
  let slices = 0;
  const query = async ({ name }: pg.QueryArrayConfig) => {
    if (name === "count_codes") onSlice(++slices);
    return { rows: name === "code_blocks" ? [[blocks]] : [] };
  };
  return { query, observer: {} } as unknown as Database;
}

test("of each number and length all codes are counted until their expiry, and those that may not be reused until a day later", async () => {
  const { database, db } = await openOwnDatabase();
  for (const [first, count, expiry] of [
    [100_000, 9_000, "1 minute"],
    [200_000, 500, "-1439 minutes"],
    [300_000, 500, "-1441 minutes"],
  ] as const) {
    await db.query(
      `INSERT INTO live_code (destination, code, code_format, verification_id, expires_at)
       SELECT '0212345678', n::text, 'numeric', gen_random_uuid(), now() + $3::interval
       FROM generate_series($1::int, $1 + $2 - 1) n`,
      [first, count, expiry],
    );
  }
  const occupancy = createCodeOccupancy(database);
  await occupancy.refresh();
  const known = (length: number) =>
    [occupancy.pending, occupancy.barred].map((count) => count("0212345678", "numeric", length));
  expect([known(6), known(7)]).toEqual([
    [9_000, 9_500],
    [0, 0],
  ]);
  // More than are counted in one statement.
  const { rows } = await db.query("SELECT pg_relation_size('live_code') / 8192 > 64 AS many");
  expect(rows).toEqual([{ many: true }]);
});

test("a code that is assigned while codes are being counted is not lost, wherever its row is stored", async () => {
  const occupancy = createCodeOccupancy(
    emptyTable((slice) => {
      occupancy.add("0212345678", "numeric", 6 + slice);
    }),
  );
  await occupancy.refresh();
  const known = [7, 8, 9, 10].map((length) => occupancy.pending("0212345678", "numeric", length));
  expect(known).toEqual([1, 1, 1, 1]);
  expect(occupancy.barred("0212345678", "numeric", 7)).toBe(1);
});

test("a code that is being created counts until it is released, over any number of counts", async () => {
  const occupancy = createCodeOccupancy(emptyTable(() => {}));
  const known = () => [occupancy.pending, occupancy.barred].map((count) => count("0212345678", "numeric", 6));
  const reserve = () => occupancy.reserve("0212345678", "numeric", 6);
  const releases = [reserve(), reserve()] as const;
  await occupancy.refresh();
  expect(known()).toEqual([2, 2]);
  releases[0]();
  expect(known()).toEqual([1, 1]);
  releases[1]();
  expect(known()).toEqual([0, 0]);
});

test("pauses are fifty times as long as counting takes, two seconds between two counts, and half a minute after an error", async () => {
  vi.useFakeTimers({ toFake: ["performance"] });
  const pauses: number[] = [];
  const pause = vi.spyOn(timers, "setTimeout").mockImplementation(async (milliseconds = 0) => {
    pauses.push(milliseconds);
    if (pauses.length === 9) await new Promise(() => {});
  });
  syncBuiltinESMExports();
  onTestFinished(() => {
    vi.useRealTimers();
    pause.mockRestore();
    syncBuiltinESMExports();
  });
  let slices = 0;
  const onError = vi.fn();
  const occupancy = createCodeOccupancy(
    emptyTable(() => {
      if (++slices === 6) throw new Error("the statement took too long");
      vi.advanceTimersByTime(slices);
    }),
  );
  occupancy.start(onError);
  await vi.waitUntil(() => pauses.length === 9, { timeout: 45_000 });
  expect(pauses).toEqual([2_000, 50, 100, 150, 2_000, 250, 30_000, 2_000, 350]);
  expect(onError).toHaveBeenCalledOnce();
});
