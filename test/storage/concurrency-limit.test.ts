/** Whose turn it is. test/rpc/list-bounds.test.ts checks how many run at once, and that the rest are refused. */
import { setImmediate } from "node:timers/promises";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { createConcurrencyLimit } from "../../src/storage/concurrency-limit.ts";
import type { Database } from "../../src/storage/database.ts";
import { runAllTheTime } from "../harness/timers.ts";

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout", "performance"] });
  runAllTheTime();
});

afterEach(() => {
  vi.useRealTimers();
});

/** A limit for a pool of that size, for work that ends on demand. */
function limitOf(poolSize: number) {
  const limit = createConcurrencyLimit({ pool: { options: { max: poolSize } } } as Database);
  const running = new Map<string, () => void>();
  return {
    running: () => [...running.keys()].join(" "),
    /** The first letter of the name is the project. */
    ask: (name: string) => limit(name.charAt(0), () => new Promise<void>((end) => running.set(name, end))),
    async end(name: string): Promise<void> {
      running.get(name)?.();
      running.delete(name);
      await setImmediate();
    },
  };
}

test("projects take turns, however much one of them asks for", async () => {
  // A quarter of them is one, and not two.
  const { ask, end, running } = limitOf(7);
  const all = ["a1", "a2", "a3", "a4", "b1", "b2", "c1"].map(ask);
  const order: string[] = [];
  for (let name = running(); name !== ""; name = running()) {
    order.push(name);
    await end(name);
  }
  // While a1 runs, a2 is the first that waits.
  expect(order).toEqual(["a1", "a2", "b1", "c1", "a3", "b2", "a4"]);
  await Promise.all(all);
});

test("a place that another project leaves goes to none that has one already", async () => {
  const { ask, end, running } = limitOf(8);
  const all = ["a1", "a2", "b1"].map(ask);
  expect(running()).toBe("a1 b1");
  await end("b1");
  expect(running()).toBe("a1");
  all.push(ask("c1"), ask("d1"));
  await end("c1");
  expect(running()).toBe("a1 d1");
  await end("a1");
  expect(running()).toBe("d1 a2");
  await end("d1");
  await end("a2");
  await Promise.all(all);
});

test("one whose turn has come no longer ends the wait of others of its project", async () => {
  const { ask, end, running } = limitOf(4);
  const all = ["a1", "a2"].map(ask);
  vi.advanceTimersByTime(2_000);
  await end("a1");
  all.push(ask("a3"));
  vi.advanceTimersByTime(2_999);
  // What is due has happened.
  await setImmediate();
  await end("a2");
  expect(running()).toBe("a3");
  await end("a3");
  await Promise.all(all);
});

test("work that fails leaves its place as well", async () => {
  const limit = createConcurrencyLimit({ pool: { options: { max: 4 } } } as Database);
  await expect(limit("a", () => Promise.reject(new Error("no")))).rejects.toThrow("no");
  const next = limit("a", async () => "done");
  vi.advanceTimersByTime(3_000);
  expect(await next).toBe("done");
});
