import fc from "fast-check";
import { expect, test } from "vitest";
import { validityRange } from "../../src/core/project.ts";
import { bucketsPerDoubling, timeBuckets, timeToVerify } from "../../src/core/time-to-verify.ts";

function counted(seconds: readonly number[]): number[] {
  const counts = new Array<number>(timeBuckets).fill(0);
  for (const second of seconds) {
    const bucket = Math.min(timeBuckets - 1, Math.floor(Math.log2(Math.max(1, second)) * bucketsPerDoubling));
    counts[bucket] = (counts[bucket] ?? 0) + 1;
  }
  return counts;
}

test("a percentile is within a tenth of the true one, or within a fifth below 1.2 seconds", () => {
  const times = fc.array(fc.double({ min: 1, max: validityRange.max - 0.001, noNaN: true }), {
    minLength: 1,
    maxLength: 200,
  });
  fc.assert(
    fc.property(times, fc.constantFrom(0.5, 0.95), (seconds, share) => {
      const sorted = seconds.toSorted((one, other) => one - other);
      const exact = sorted[Math.ceil(sorted.length * share) - 1] ?? Number.NaN;
      const estimate = timeToVerify(counted(seconds), share) ?? Number.NaN;
      expect(estimate / exact).toBeGreaterThan(1 / 1.2);
      expect(Math.abs(estimate - exact) / exact).toBeLessThan(exact < 1.2 ? 0.2 : 0.1);
    }),
  );
});

test("without times there is no percentile, and less than a second counts as one", () => {
  expect(timeToVerify(counted([]), 0.5)).toBeNull();
  expect(timeToVerify(counted([0.2, 0.4]), 0.95)).toBe(1);
});
