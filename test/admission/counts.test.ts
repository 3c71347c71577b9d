import { expect, onTestFinished, test, vi } from "vitest";
import { type CountsOf, mostKeys, ownCounts } from "../../src/admission/counts.ts";
import { createRateLimits } from "../../src/admission/rate-limits.ts";
import { createWindowLimits, requestsPerAddress } from "../../src/admission/window-limits.ts";

/** Counts as Redis holds them: in one store, in which only the name separates one limit's keys from another's. */
function inOneStore(msBeforeNext = 1): CountsOf {
  const counted = new Map<string, number>();
  return (name) => ({
    async consume(key) {
      const consumedPoints = (counted.get(name + key) ?? 0) + 1;
      counted.set(name + key, consumedPoints);
      return { consumedPoints, msBeforeNext };
    },
  });
}

test("a window's limits use up none of each other in a shared store", async () => {
  const limits = createWindowLimits(inOneStore());
  for (let request = 0; request < 100; request++) await limits.take("192.0.2.1", "token");
  for (let message = 0; message < 30; message++) await limits.takeMessage("token");
  for (let miss = 0; miss < 60; miss++) await limits.takeMiss("192.0.2.1", "wrong");
  await limits.take("192.0.2.1", "another");
});

test("all addresses of an IPv6 /64 network open 3,000 new windows a minute together", async () => {
  const limits = createWindowLimits(ownCounts);
  for (let host = 0; host < requestsPerAddress; host++) {
    await limits.take(`2001:db8::${host.toString(16)}`, `token ${host}`);
  }
  await expect(limits.take("2001:db8::ffff", "one more")).rejects.toThrow("Too many calls");
  await limits.take("2001:db8:0:1::", "one more");
});

test("a window that is in use stays remembered, however many are opened after it", async () => {
  const limits = createWindowLimits(ownCounts);
  limits.opened("in use");
  for (let opened = 1; opened < 30_000; opened++) {
    if (opened === 15_000) await limits.take("192.0.2.1", "in use");
    limits.opened(`another ${opened}`);
  }
  for (let request = 0; request < requestsPerAddress; request++) {
    await limits.take("192.0.2.1", `unknown ${request}`);
  }
  await expect(limits.take("192.0.2.1", "another 1")).rejects.toThrow("Too many calls");
  await limits.take("192.0.2.1", "in use");
});

test("a caller over a limit is told to wait for a second even if the store's minute is just over", async () => {
  const refused = expect.objectContaining({ code: "rate_limited", retryAfterSeconds: 1 });
  const rates = createRateLimits(inOneStore(0));
  await expect(rates.take("project", "create", 0)).rejects.toEqual(refused);
  const windows = createWindowLimits(inOneStore(0));
  for (let message = 0; message < 30; message++) await windows.takeMessage("token");
  await expect(windows.takeMessage("token")).rejects.toEqual(refused);
});

test("each key has a minute of its own, and each name keys of its own", async () => {
  const [calls, guesses] = [ownCounts("calls"), ownCounts("guesses")];
  expect(await calls.consume("one")).toEqual({ consumedPoints: 1, msBeforeNext: 60_000 });
  const second = await calls.consume("one");
  expect(second.consumedPoints).toBe(2);
  expect(second.msBeforeNext).toBeLessThan(60_000);
  expect((await calls.consume("other")).consumedPoints).toBe(1);
  expect((await guesses.consume("one")).consumedPoints).toBe(1);
});

test("once a key's minute is over, another one begins", async () => {
  const { consume } = ownCounts("calls");
  const clock = vi.spyOn(performance, "now").mockReturnValue(1_000);
  onTestFinished(() => clock.mockRestore());
  await consume("one");
  clock.mockReturnValue(60_999);
  expect(await consume("one")).toEqual({ consumedPoints: 2, msBeforeNext: 1 });
  clock.mockReturnValue(61_000);
  expect(await consume("one")).toEqual({ consumedPoints: 1, msBeforeNext: 60_000 });
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
