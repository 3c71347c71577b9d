import { expect, test } from "vitest";
import { mostKeys, ownCounts } from "../../src/admission/counts.ts";

test("each key has a minute of its own, and each name keys of its own", async () => {
  const [calls, guesses] = [ownCounts("calls"), ownCounts("guesses")];
  expect(await calls.consume("one")).toEqual({ consumedPoints: 1, msBeforeNext: 60_000 });
  const second = await calls.consume("one");
  expect(second.consumedPoints).toBe(2);
  expect(second.msBeforeNext).toBeLessThan(60_000);
  expect((await calls.consume("other")).consumedPoints).toBe(1);
  expect((await guesses.consume("one")).consumedPoints).toBe(1);
});

test("however many addresses there are, the counts of the last ones are kept, and of those that go on", async () => {
  const { consume } = ownCounts("misses");
  await consume("once");
  for (let key = 1; key < mostKeys; key++) {
    await consume(`address ${key}`);
    if (key % 10_000 === 0) await consume("again and again");
  }
  // One more than are kept: the one that has not been counted for longest begins anew.
  expect((await consume("once")).consumedPoints).toBe(1);
  expect((await consume("again and again")).consumedPoints).toBe(5);
  expect((await consume(`address ${mostKeys - 1}`)).consumedPoints).toBe(2);
});
