import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { Failure } from "../../src/failures.ts";
import { createBatcher } from "../../src/storage/batcher.ts";
import { unobserved } from "../../src/storage/observer.ts";
import { runAllTheTime } from "../harness/timers.ts";

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["performance"] });
  runAllTheTime();
});

afterEach(() => {
  vi.useRealTimers();
});

const numbers = (count: number) => Array.from({ length: count }, (_, n) => n);

/** A batcher of single items, over a database that answers on demand. */
function slowBatcher(maxWaiting = 100) {
  const answers: (() => void)[] = [];
  const asked: number[] = [];
  const enqueue = createBatcher<number, number>({
    observer: unobserved.batch("test"),
    maxSize: 1,
    maxWaiting,
    run: (items) => {
      asked.push(...items);
      return new Promise((resolve) => answers.push(() => resolve(items)));
    },
  });
  return {
    enqueue,
    asked,
    /** Advances the clock, then lets the database answer once. */
    async answerAfter(milliseconds: number): Promise<void> {
      vi.advanceTimersByTime(milliseconds);
      answers.shift()?.();
      await new Promise((resolve) => setImmediate(resolve));
    },
  };
}

test("a burst may wait for up to four seconds without anybody being refused", async () => {
  const { enqueue, answerAfter } = slowBatcher();
  const burst = Array.from({ length: 6 }, (_, item) => enqueue(item));
  for (let answered = 0; answered < 5; answered++) {
    await answerAfter(790);
    expect(enqueue.isOverloaded()).toBe(false);
  }
  await answerAfter(790);
  expect(await Promise.all(burst)).toEqual([0, 1, 2, 3, 4, 5]);
});

test("no more than the maximum number can wait, however short the wait", async () => {
  const { enqueue, answerAfter } = slowBatcher();
  const taken = Array.from({ length: 101 }, (_, item) => enqueue(item));
  await expect(enqueue(101)).rejects.toMatchObject({ code: "service_unavailable" });
  await answerAfter(0);
  taken.push(enqueue(102));
  for (let answered = 0; answered < 101; answered++) await answerAfter(0);
  expect((await Promise.all(taken)).length).toBe(102);
});

test("requests that would wait for more than four seconds are refused", async () => {
  const { enqueue, answerAfter } = slowBatcher();
  const taken = [enqueue(0), enqueue(1)];
  vi.advanceTimersByTime(4_001);
  expect(enqueue.isOverloaded()).toBe(true);
  await expect(enqueue(2)).rejects.toMatchObject({ code: "service_unavailable" });
  await answerAfter(0);
  expect(enqueue.isOverloaded()).toBe(false);
  await answerAfter(0);
  expect(await Promise.all(taken)).toEqual([0, 1]);
});

test("requests that would wait for more than four seconds are refused, if a batch takes as long as the one in flight has", async () => {
  const { enqueue, answerAfter } = slowBatcher();
  const taken = numbers(5).map(enqueue);
  vi.advanceTimersByTime(1_000);
  expect(enqueue.isOverloaded()).toBe(false);
  vi.advanceTimersByTime(1);
  expect(enqueue.isOverloaded()).toBe(true);
  for (const _ of taken) await answerAfter(0);
  expect(await Promise.all(taken)).toEqual(numbers(5));
});

test("requests that wait behind a batch that timed out fail with it", async () => {
  const fails: ((error: Error) => void)[] = [];
  const enqueue = createBatcher<number, number>({
    observer: unobserved.batch("test"),
    maxSize: 1,
    maxWaiting: 100,
    run: () => new Promise((_, reject) => fails.push(reject)),
  });
  const settled = Promise.allSettled([enqueue(0), enqueue(1), enqueue(2)]);
  vi.advanceTimersByTime(9_500);
  fails.shift()?.(Object.assign(new Error("no answer"), { code: "ETIMEDOUT" }));
  expect(await settled).toMatchObject(
    [0, 1, 2].map(() => ({ status: "rejected", reason: { code: "ETIMEDOUT" } })),
  );
  expect(fails).toEqual([]);
});

test("a request without a result after thirteen seconds is refused, and what its batch returns later is dropped", async () => {
  const { enqueue, answerAfter } = slowBatcher();
  const first = enqueue(0);
  vi.advanceTimersByTime(3_000);
  const second = enqueue(1);
  await answerAfter(4_000);
  expect(await first).toBe(0);
  vi.advanceTimersByTime(9_000);
  await expect(second).rejects.toMatchObject({ code: "service_unavailable" });
  await answerAfter(0);
  const third = enqueue(2);
  await answerAfter(0);
  expect(await third).toBe(2);
});

test("the database is not asked for what was refused after thirteen seconds behind another batch", async () => {
  vi.useFakeTimers({ toFake: ["performance", "setTimeout"] });
  const { enqueue, asked, answerAfter } = slowBatcher();
  const settled = Promise.allSettled([enqueue(0), enqueue(1)]);
  // It is looked at several times.
  vi.advanceTimersByTime(13_500);
  const refused = { status: "rejected", reason: { code: "service_unavailable" } };
  expect(await settled).toMatchObject([refused, refused]);
  const last = enqueue(2);
  await answerAfter(0);
  await answerAfter(0);
  expect(await last).toBe(2);
  expect(asked).toEqual([0, 2]);
});

test("a batcher whose callers limit themselves refuses nothing, however long it takes", async () => {
  vi.useFakeTimers({ toFake: ["performance", "setTimeout"] });
  const { enqueue, answerAfter } = slowBatcher(Number.POSITIVE_INFINITY);
  const both = Promise.all([enqueue(0), enqueue(1)]);
  await answerAfter(60_000);
  await answerAfter(60_000);
  expect(await both).toEqual([0, 1]);
});

test("if few wait when a batch ends, those that have arrived but are not read yet join the next one", async () => {
  const batches: (readonly number[])[] = [];
  const answers: (() => void)[] = [];
  const enqueue = createBatcher<number, number>({
    observer: unobserved.batch("test"),
    maxSize: 10,
    maxWaiting: 100,
    run: (items) => {
      batches.push(items);
      return new Promise((resolve) => answers.push(() => resolve(items)));
    },
  });
  const answer = async () => {
    answers.shift()?.();
    for (let turns = 0; turns < 2; turns++) await new Promise((resolve) => setImmediate(resolve));
  };
  const all = numbers(3).map(enqueue);
  await answer();
  all.push(enqueue(3));
  setImmediate(() => all.push(enqueue(4)));
  await answer();
  expect(batches).toEqual([[0], [1, 2], [3, 4]]);
  await answer();
  expect(await Promise.all(all)).toEqual(numbers(5));
});

test("a batch with too few results fails as a whole, and is not run again", async () => {
  let runs = 0;
  const enqueue = createBatcher<number, number>({
    observer: unobserved.batch("test"),
    maxSize: 10,
    maxWaiting: 100,
    run: async (items) => {
      runs += 1;
      return items.slice(1);
    },
  });
  const settled = await Promise.allSettled([enqueue(0), enqueue(1), enqueue(2)]);
  expect(settled.map(({ status }) => status)).toEqual(["rejected", "rejected", "rejected"]);
  // The first item alone, then those that came meanwhile.
  expect(runs).toBe(2);
});

test("requests that wait behind a batch that the database refused, however late, do not fail with it", async () => {
  const fails: ((error: Error) => void)[] = [];
  const enqueue = createBatcher<number, number>({
    observer: unobserved.batch("test"),
    maxSize: 1,
    maxWaiting: 100,
    run: ([item = 0]) =>
      item === 0 ? new Promise((_, reject) => fails.push(reject)) : Promise.resolve([item]),
  });
  const settled = Promise.allSettled([enqueue(0), enqueue(1)]);
  vi.advanceTimersByTime(9_500);
  fails.shift()?.(new Error("no"));
  expect(await settled).toMatchObject([{ status: "rejected" }, { status: "fulfilled", value: 1 }]);
});

test("under sustained overload nobody waits for much more than a second, until the backlog is gone", async () => {
  const { enqueue, answerAfter } = slowBatcher();
  let taken = 0;
  let done = 0;
  const offer = () => {
    if (enqueue.isOverloaded()) return;
    taken += 1;
    void enqueue(taken).then(() => {
      done += 1;
    });
  };
  // Two arrive for each one that is answered.
  const waiting: number[] = [];
  for (let answered = 0; answered < 400; answered++) {
    offer();
    offer();
    await answerAfter(100);
    waiting.push(taken - done);
  }
  expect(Math.max(...waiting)).toBeGreaterThan(30);
  const later = waiting.slice(200);
  expect(Math.min(...later)).toBeGreaterThan(5);
  expect(Math.max(...later)).toBeLessThan(15);
  // Those waiting at that point are answered within little more than a second.
  for (let wait = 0; wait < 15; wait++) await answerAfter(100);
  expect(done).toBe(taken);
  expect(enqueue.isOverloaded()).toBe(false);
  // From then on a burst is accepted again.
  const burst = Array.from({ length: 6 }, (_, item) => enqueue(item));
  for (let answered = 0; answered < 6; answered++) {
    await answerAfter(600);
    expect(enqueue.isOverloaded()).toBe(false);
  }
  expect(await Promise.all(burst)).toHaveLength(6);
});

test("sustained overload is over only once a request has hardly waited", async () => {
  const { enqueue, answerAfter } = slowBatcher();
  let left = 0;
  const offer = (count: number) => {
    for (let offered = 0; offered < count && !enqueue.isOverloaded(); offered++) {
      left += 1;
      void enqueue(0).then(() => {
        left -= 1;
      });
    }
  };
  const answer = async (times: number) => {
    for (let answered = 0; answered < times; answered++) await answerAfter(100);
  };
  // More than a second's worth waits all the time, for longer than four seconds.
  offer(30);
  for (let answered = 0; answered < 50; answered++) {
    await answer(1);
    offer(1);
  }
  expect(left).toBeGreaterThan(10);
  // With fewer new ones each soon waits for half a second only: of a burst no more than a second's worth is taken.
  await answer(left - 5);
  for (let answered = 0; answered < 10; answered++) {
    offer(1);
    await answer(1);
  }
  offer(30);
  expect(left).toBeLessThan(15);
  await answer(left);
  offer(30);
  expect(left).toBe(30);
  await answer(30);
  expect(left).toBe(0);
});

test("nobody is refused because of a pause", async () => {
  const { enqueue, answerAfter } = slowBatcher();
  const all = [enqueue(0)];
  await answerAfter(10);
  vi.advanceTimersByTime(3_600_000);
  all.push(enqueue(1), enqueue(2));
  expect(enqueue.isOverloaded()).toBe(false);
  await answerAfter(10);
  await answerAfter(10);
  expect(await Promise.all(all)).toEqual([0, 1, 2]);
});

test.for([
  { name: "one item that the database refuses fails alone", error: new Error("no"), failed: [5], runs: 8 },
  {
    name: "if the database is unreachable all fail at once, and none is sent again",
    error: Object.assign(new Error("no"), { code: "ECONNRESET" }),
    failed: numbers(8).slice(1),
    runs: 2,
  },
])("$name", async ({ error, failed, runs }) => {
  let ran = 0;
  const enqueue = createBatcher<number, string>({
    observer: unobserved.batch("test"),
    maxSize: 100,
    maxWaiting: 100,
    run: async (items) => {
      ran += 1;
      if (items.includes(5)) throw error;
      return items.map(String);
    },
  });
  const settled = await Promise.allSettled(numbers(8).map(enqueue));
  expect(settled).toEqual(
    numbers(8).map((item) =>
      failed.includes(item)
        ? { status: "rejected", reason: error }
        : { status: "fulfilled", value: String(item) },
    ),
  );
  expect(ran).toBe(runs);
});

/** A batcher of texts, whose keys are their letters, over a database that answers any batch on demand. */
function lettersBatcher() {
  const inFlight: { readonly items: readonly string[]; readonly answer: () => void }[] = [];
  const enqueue = createBatcher<string, string>({
    observer: unobserved.batch("test"),
    maxSize: 300,
    maxWaiting: Number.POSITIVE_INFINITY,
    keysOf: (item) => [...item],
    run: (items) => new Promise((resolve) => inFlight.push({ items, answer: () => resolve(items) })),
  });
  return {
    enqueue,
    inFlight: () => inFlight.map(({ items }) => items),
    async answer(index: number): Promise<void> {
      inFlight.splice(index, 1)[0]?.answer();
      for (let turns = 0; turns < 3; turns++) await new Promise((resolve) => setImmediate(resolve));
    },
  };
}

/** Texts of one letter each, none of them a, b or c. */
const others = (count: number) => Array.from({ length: count }, (_, n) => String.fromCodePoint(0x4e00 + n));

test("if many wait, a second batch runs beside the first, with items that share no keys with it", async () => {
  const { enqueue, inFlight, answer } = lettersBatcher();
  const settled: string[] = [];
  const send = (items: readonly string[]) =>
    items.map((item) =>
      enqueue(item).then((result) => {
        settled.push(result);
      }),
    );
  // At 128 waiting, too few of them can go; then as many again have to arrive.
  const all = [...send(["a"]), ...send(["ab", "bc", "c"]), ...send(others(252))];
  expect(inFlight()).toEqual([["a"]]);
  all.push(...send(others(253).slice(252)));
  expect(inFlight()).toEqual([["a"], others(253)]);

  // Items that share a key with a waiting one wait, too, in the order in which they came.
  await answer(1);
  expect(settled).toEqual(others(253));
  expect(inFlight()).toEqual([["a"]]);
  await answer(0);
  expect(inFlight()).toEqual([["ab", "bc", "c"]]);
  vi.advanceTimersByTime(1_000);
  await answer(0);
  await Promise.all(all);
  expect(settled.slice(253)).toEqual(["a", "ab", "bc", "c"]);

  // The keys of finished items block nobody, and that the last batch took long prevents no second one.
  const again = [...send(["a"]), ...send(others(128))];
  expect(inFlight()).toEqual([["a"], others(128)]);

  // Those of the batch that is still in flight do, once the other one is answered.
  again.push(...send(["ab"]), ...send(others(128)));
  await answer(1);
  expect(inFlight()).toEqual([["a"], others(128)]);
  await answer(1);
  await answer(0);
  expect(inFlight()).toEqual([["ab"]]);
  await answer(0);
  await Promise.all(again);
});

test("few waiting items start no second batch, and never more than two batches run", async () => {
  const { enqueue, inFlight, answer } = lettersBatcher();
  const all = ["a", ...others(126)].map((item) => enqueue(item));
  expect(inFlight().length).toBe(1);
  all.push(
    ...others(500)
      .slice(126)
      .map((item) => enqueue(item)),
  );
  expect(inFlight().length).toBe(2);
  while (inFlight().length > 0) {
    expect(inFlight().length).toBeLessThanOrEqual(2);
    await answer(0);
  }
  expect((await Promise.all(all)).length).toBe(501);
});

test("the keys of items that failed with a whole batch block nobody", async () => {
  let fails = true;
  const enqueue = createBatcher<string, string>({
    observer: unobserved.batch("test"),
    maxSize: 200,
    maxWaiting: Number.POSITIVE_INFINITY,
    keysOf: (item) => [...item],
    run: async (items) => {
      if (fails) throw new Failure("service_unavailable");
      return items;
    },
  });
  const refused = await Promise.allSettled(["a", ...others(300)].map((item) => enqueue(item)));
  expect(new Set(refused.map(({ status }) => status))).toEqual(new Set(["rejected"]));
  fails = false;
  expect(await Promise.all(["a", ...others(300)].map((item) => enqueue(item)))).toHaveLength(301);
});

/** The first character of an item is its sender. */
function batcherBySender(maxSize: number, keysOf?: (item: string) => readonly string[]) {
  const batches: (readonly string[])[] = [];
  const enqueue = createBatcher<string, string>({
    observer: unobserved.batch("test"),
    maxSize,
    maxWaiting: Number.POSITIVE_INFINITY,
    senderOf: ([sender = ""]) => sender,
    ...(keysOf && { keysOf }),
    run: async (items) => {
      batches.push(items);
      return items;
    },
  });
  return { enqueue, batches };
}

test("senders share a batch that is too small for all; items that share a key keep their order", async () => {
  // An item is its sender, a number, and its key if it has one.
  const { enqueue, batches } = batcherBySender(4, (item) => [...item.slice(2)]);
  const items = ["a0", "a1", "a2", "a3", "a4k", "a5", "b1", "b2k", "b3", "c1"];
  expect(await Promise.all(items.map((item) => enqueue(item)))).toEqual(items);
  expect(batches).toEqual([
    ["a0"],
    // b2k waits for a4k, which arrived before; then b3 takes its place.
    ["a1", "b1", "b3", "c1"],
    ["a2", "a3", "a4k", "b2k"],
    ["a5"],
  ]);
});

test("places in a batch that a sender cannot use, because its items wait for those of others, are not left empty", async () => {
  const { enqueue, batches } = batcherBySender(4, () => ["k"]);
  const items = ["x0", "a0", "a1", "a2", "a3", "a4", "b0", "b1", "b2"];
  expect(await Promise.all(items.map((item) => enqueue(item)))).toEqual(items);
  expect(batches).toEqual([["x0"], ["a0", "a1", "a2", "a3"], ["a4", "b0", "b1", "b2"]]);
});

test("of more senders than fit into a batch, those that have waited longest go first, however much each has sent", async () => {
  const { enqueue, batches } = batcherBySender(2);
  await Promise.all(["x0", "a0", "a1", "b0", "c0", "d0"].map((item) => enqueue(item)));
  expect(batches).toEqual([["x0"], ["a0", "b0"], ["a1", "c0"], ["d0"]]);
});

test("pipelined: a large batch follows the one in flight, a third one waits, and a small one waits for the last answer", async () => {
  const { enqueue, inFlight, answer, durations } = pipelinedBatcher();
  const all = numbers(24).map(enqueue);
  expect(inFlight()).toEqual([[0]]);
  vi.advanceTimersByTime(4);
  all.push(enqueue(24));
  expect(inFlight()).toEqual([[0], numbers(25).slice(1)]);
  all.push(...numbers(50).slice(25).map(enqueue));
  expect(inFlight().length).toBe(2);
  vi.advanceTimersByTime(6);
  // The second batch now has the database to itself, and the waiting items follow it.
  await answer();
  expect(inFlight()).toEqual([numbers(25).slice(1), numbers(50).slice(25)]);
  all.push(...numbers(73).slice(50).map(enqueue));
  vi.advanceTimersByTime(20);
  await answer();
  expect(inFlight()).toEqual([numbers(50).slice(25)]);
  await answer();
  expect(inFlight()).toEqual([numbers(73).slice(50)]);
  vi.advanceTimersByTime(5);
  await answer();
  expect(await Promise.all(all)).toEqual(numbers(73));
  // A batch's duration does not include its wait behind another.
  expect(durations).toEqual([10, 20, 0, 5]);
});

test("no batch is pipelined behind one while the last took more than half a millisecond for each item, or of few items 12 ms", async () => {
  const { enqueue, inFlight, answer } = pipelinedBatcher();
  const all = numbers(55).map(enqueue);
  vi.advanceTimersByTime(13);
  await answer();
  expect(inFlight()).toEqual([numbers(25).slice(1)]);
  vi.advanceTimersByTime(13);
  await answer();
  expect(inFlight()).toEqual([numbers(55).slice(25)]);
  all.push(...numbers(79).slice(55).map(enqueue));
  expect(inFlight().length).toBe(1);
  vi.advanceTimersByTime(15);
  await answer();
  expect(inFlight()).toEqual([numbers(79).slice(55)]);
  all.push(...numbers(103).slice(79).map(enqueue));
  expect(inFlight()).toEqual([numbers(79).slice(55), numbers(103).slice(79)]);
  await answer();
  await answer();
  expect(await Promise.all(all)).toEqual(numbers(103));
});

test("a database that answers the first of two batches in time is not mistaken for one that does not answer", async () => {
  const { enqueue, answer } = pipelinedBatcher();
  const all = numbers(26).map(enqueue);
  vi.advanceTimersByTime(3_000);
  await answer();
  const last = enqueue(26);
  vi.advanceTimersByTime(3_000);
  expect(enqueue.isOverloaded()).toBe(false);
  vi.advanceTimersByTime(1_001);
  expect(enqueue.isOverloaded()).toBe(true);
  await answer();
  await answer();
  expect(await Promise.all([...all, last])).toEqual(numbers(27));
});

test("if two batches take long each, those that waited for both are refused after the second", async () => {
  const { enqueue, inFlight, answer } = pipelinedBatcher();
  const both = numbers(25).map(enqueue);
  const rest = numbers(75).slice(25).map(enqueue);
  vi.advanceTimersByTime(7_000);
  await answer();
  expect(inFlight()).toEqual([numbers(25).slice(1)]);
  const later = enqueue(75);
  const settled = Promise.allSettled(rest);
  vi.advanceTimersByTime(7_000);
  await answer();
  expect(await Promise.all(both)).toEqual(numbers(25));
  expect(new Set((await settled).map(({ status }) => status))).toEqual(new Set(["rejected"]));
  await expect(rest[0]).rejects.toMatchObject({ code: "service_unavailable" });
  expect(inFlight()).toEqual([[75]]);
  await answer();
  expect(await later).toBe(75);
});

test("a database that is quick again after a slow batch answers all who waited, and is pipelined again", async () => {
  const { enqueue, inFlight, answer } = pipelinedBatcher();
  const all = numbers(75).map(enqueue);
  vi.advanceTimersByTime(6_000);
  await answer();
  expect(inFlight()).toEqual([numbers(25).slice(1)]);
  await answer();
  expect(inFlight()).toEqual([numbers(75).slice(25)]);
  all.push(...numbers(99).slice(75).map(enqueue));
  expect(inFlight()).toEqual([numbers(75).slice(25), numbers(99).slice(75)]);
  await answer();
  await answer();
  expect(await Promise.all(all)).toEqual(numbers(99));
});

/** A batcher over a connection that answers in order, on demand. */
function pipelinedBatcher() {
  const asked: { readonly items: readonly number[]; readonly answer: () => void }[] = [];
  const durations: number[] = [];
  const enqueue = createBatcher<number, number>({
    observer: { ran: (_size, _waited, took) => void durations.push(took) },
    maxSize: 100,
    maxWaiting: 1_000,
    isPipelined: true,
    run: (items) => new Promise((resolve) => asked.push({ items, answer: () => resolve(items) })),
  });
  return {
    enqueue,
    durations,
    inFlight: () => asked.map(({ items }) => items),
    async answer(): Promise<void> {
      asked.shift()?.answer();
      await new Promise((resolve) => setImmediate(resolve));
      await new Promise((resolve) => setImmediate(resolve));
    },
  };
}
