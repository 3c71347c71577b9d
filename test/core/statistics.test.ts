import { expect, test } from "vitest";
import type { Call } from "../../src/core/call.ts";
import type { Directory } from "../../src/core/directory.ts";
import { newId } from "../../src/core/ids.ts";
import { hourMs } from "../../src/core/silence.ts";
import { type CountedHour, getStatistics } from "../../src/core/statistics.ts";

const call = {
  caller: { kind: "service", scope: "read", projectId: newId(), environment: null },
  violations: [],
} as unknown as Call;
const none = { created: 0, verified: 0, expired: 0, cancelled: 0, times: [], firstBucket: 0 };

/** One hour that takes a millisecond to unpack. */
function* busyHour(): Generator<CountedHour> {
  const until = performance.now() + 1;
  while (performance.now() < until);
  yield { ...none, hour: 0, created: 2, verified: 1, times: [1], firstBucket: 3, lastVerifiedAt: 1 };
}

test("while the counts of many numbers are added up, all other work has turns", async () => {
  const names = Array.from({ length: 100 }, (_, index) => ({
    kind: "number" as const,
    environment: "live" as const,
    name: `1666${1000 + index}`,
    hours: busyHour,
  }));
  const get = getStatistics({
    statistics: {
      read: async () => ({ since: 0, until: hourMs, now: 1, countedUntil: 1, incomplete: false, names }),
    },
    directory: { project: async () => ({}), numbersFor: async () => [] } as unknown as Directory,
    chargeUsage: () => Promise.reject(new Error("a service token is not charged")),
  });
  let turns = 0;
  let next = setImmediate(function turn() {
    turns += 1;
    next = setImmediate(turn);
  });
  const { environments } = await get({ projectId: null, environment: "live", since: null, hours: 1 }, call);
  clearImmediate(next);
  expect(environments.map(({ total, numbers }) => [total.created, total.times[3], numbers.length])).toEqual([
    [200, 100, 100],
  ]);
  // A slice lasts five milliseconds.
  expect(turns).toBeGreaterThan(5);
});
