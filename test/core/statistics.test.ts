import { expect, test } from "vitest";
import type { Call } from "../../src/core/call.ts";
import type { Directory } from "../../src/core/directory.ts";
import { newId } from "../../src/core/ids.ts";
import { hourMs } from "../../src/core/silence.ts";
import { type CountedHour, type CountedHours, getStatistics } from "../../src/core/statistics.ts";
import { blockFor } from "../harness/blocking.ts";

const call = {
  caller: { kind: "service", scope: "read", projectId: newId(), environment: null },
  violations: [],
} as unknown as Call;
const none = { created: 0, verified: 0, expired: 0, cancelled: 0, times: [], firstBucket: 0 };

const getFrom = (counted: CountedHours) =>
  getStatistics({
    statistics: { read: async () => counted },
    directory: { project: async () => ({}), numbersFor: async () => [] } as unknown as Directory,
    chargeUsage: () => Promise.reject(new Error("a service token is not charged")),
  })({ projectId: null, environment: "live", since: null, hours: 1 }, call);

/** One hour that takes a millisecond to unpack. */
function* busyHour(): Generator<CountedHour> {
  blockFor(1);
  yield { ...none, hour: 0, created: 2, verified: 1, times: [1], firstBucket: 3, lastVerifiedAt: 1 };
}

test("while the counts of many numbers are added up, all other work has turns", async () => {
  const names = Array.from({ length: 100 }, (_, index) => ({
    kind: "number" as const,
    environment: "live" as const,
    name: `1666${1000 + index}`,
    hours: busyHour,
  }));
  let turns = 0;
  let next = setImmediate(function turn() {
    turns += 1;
    next = setImmediate(turn);
  });
  const counted = { since: 0, until: hourMs, now: 1, countedUntil: 1, incomplete: false, names };
  const { environments } = await getFrom(counted);
  clearImmediate(next);
  expect(environments.map(({ total, numbers }) => [total.created, total.times[3], numbers.length])).toEqual([
    [200, 100, 100],
  ]);
  // A slice lasts five milliseconds.
  expect(turns).toBeGreaterThan(5);
});

test("numbers are ordered, and hours before and after the period add nothing, though they are read for the silences", async () => {
  const hours = () =>
    [3, 4, 5, 6].map((hour) => ({ ...none, hour: hour * hourMs, created: 10 ** hour, lastVerifiedAt: null }));
  const names = ["16661003", "16661001", "16661002"].map((name) => ({
    kind: "number" as const,
    environment: "live" as const,
    name,
    hours,
  }));
  const now = 8 * hourMs;
  const period = { since: 4 * hourMs, until: 6 * hourMs };
  const { environments } = await getFrom({ ...period, now, countedUntil: now, incomplete: false, names });
  const [live] = environments;
  expect(live?.numbers.map(({ destination, counts }) => [destination, counts.created])).toEqual([
    ["16661001", 110_000],
    ["16661002", 110_000],
    ["16661003", 110_000],
  ]);
  expect(live?.total.created).toBe(330_000);
  expect(live?.hours.map(({ counts }) => counts.created)).toEqual([30_000, 300_000]);
});
