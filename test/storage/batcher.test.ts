import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { createBatcher } from "../../src/storage/batcher.ts";
import { unobserved } from "../../src/storage/observer.ts";

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["performance"] });
});

afterEach(() => {
  vi.useRealTimers();
});

/** A batcher of single items, over a database that answers when it is told to. */
function slowBatcher() {
  const answers: (() => void)[] = [];
  const enqueue = createBatcher<number, number>({
    observer: unobserved.batch("test"),
    maxSize: 1,
    maxWaiting: 100,
    run: (items) => new Promise((resolve) => answers.push(() => resolve(items))),
  });
  return {
    enqueue,
    /** So much later the database answers once. */
    async answerAfter(milliseconds: number): Promise<void> {
      vi.advanceTimersByTime(milliseconds);
      answers.shift()?.();
      await new Promise((resolve) => setImmediate(resolve));
    },
  };
}

test("a burst waits for as long as four seconds, and nobody is refused for it", async () => {
  const { enqueue, answerAfter } = slowBatcher();
  const burst = Array.from({ length: 6 }, (_, item) => enqueue(item));
  for (let answered = 0; answered < 5; answered++) {
    await answerAfter(790);
    expect(enqueue.isOverloaded()).toBe(false);
  }
  await answerAfter(790);
  expect(await Promise.all(burst)).toEqual([0, 1, 2, 3, 4, 5]);
});

test("so many wait and no more, however short the wait", async () => {
  const { enqueue, answerAfter } = slowBatcher();
  const taken = Array.from({ length: 101 }, (_, item) => enqueue(item));
  await expect(enqueue(101)).rejects.toMatchObject({ code: "service_unavailable" });
  await answerAfter(0);
  taken.push(enqueue(102));
  for (let answered = 0; answered < 101; answered++) await answerAfter(0);
  expect((await Promise.all(taken)).length).toBe(102);
});

test("what would wait for longer is refused", async () => {
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

test("where that goes on nobody waits for more than a second, until what waits has been worked off", async () => {
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
  // Two come for each that is answered.
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
  // And what waits then is answered within little more than a second.
  for (let wait = 0; wait < 15; wait++) await answerAfter(100);
  expect(done).toBe(taken);
  expect(enqueue.isOverloaded()).toBe(false);
});
