import type pg from "pg";
import { expect, test } from "vitest";
import { createCodeOccupancy } from "../../src/storage/code-occupancy.ts";
import type { Database } from "../../src/storage/database.ts";

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
  const releases = [1, 2].map(() => occupancy.reserve("0212345678", "numeric", 6));
  await occupancy.refresh();
  expect(known()).toEqual([2, 2]);
  for (const release of releases) release();
  expect(known()).toEqual([0, 0]);
});
