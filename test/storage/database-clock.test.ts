import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { Database } from "../../src/storage/database.ts";
import { createDatabaseClock } from "../../src/storage/database-clock.ts";

const databaseTime = Date.parse("2026-11-21T06:41:00.123Z");
let asked = 0;
let isAway = false;
/** Two hours ahead of the process, at the same speed. */
const database = {
  observer: {},
  async query() {
    asked++;
    if (isAway) throw new Error("away");
    return { rows: [[Math.floor(databaseTime + performance.now())]] };
  },
} as unknown as Database;

beforeEach(() => {
  asked = 0;
  isAway = false;
  vi.useFakeTimers({ now: databaseTime - 7_200_000, toFake: ["Date", "performance"] });
});
afterEach(() => {
  vi.useRealTimers();
});

test("the clock asks once, and then advances with the elapsed time", async () => {
  const clock = createDatabaseClock(database);
  const [first, second] = await Promise.all([clock.now(), clock.now()]);
  expect([first, second, asked]).toEqual([databaseTime, databaseTime, 1]);
  vi.advanceTimersByTime(40_000);
  expect(clock.now()).toBe(databaseTime + 40_000);
  clock.learn(databaseTime + 40_500);
  vi.advanceTimersByTime(40_000);
  expect(clock.now()).toBe(databaseTime + 80_500);
  expect(asked).toBe(1);
});

test("the clock asks again after a minute without news, or if the process's clocks disagree", async () => {
  const clock = createDatabaseClock(database);
  await clock.now();
  vi.advanceTimersByTime(60_000);
  expect(await clock.now()).toBe(databaseTime + 60_000);
  expect(asked).toBe(2);
  vi.setSystemTime(Date.now() + 3_600_000);
  expect(await clock.now()).toBe(databaseTime + 60_000);
  expect(asked).toBe(3);
  expect(clock.now()).toBe(databaseTime + 60_000);
});

test("a delayed answer does not set the clock back, but a database with another clock does", async () => {
  const clock = createDatabaseClock(database);
  await clock.now();
  clock.learn(databaseTime - 20_000);
  expect(clock.now()).toBe(databaseTime);
  vi.advanceTimersByTime(10);
  clock.learn(databaseTime + 3);
  expect(clock.now()).toBe(databaseTime + 10);
  clock.learn(databaseTime - 7_200_000);
  expect(clock.now()).toBe(databaseTime - 7_200_000);
});

test("if the database was unavailable, the next caller asks again", async () => {
  const clock = createDatabaseClock(database);
  isAway = true;
  await expect(clock.now()).rejects.toThrow("away");
  isAway = false;
  expect(await clock.now()).toBe(databaseTime);
});
