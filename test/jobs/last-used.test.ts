import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { writeLastUses } from "../../src/jobs/last-used.ts";

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

const minute = 60_000;

test("uses are written every minute, even after a failure, and once more at the stop", async () => {
  const write = vi.fn(async () => {});
  const onError = vi.fn();
  const job = writeLastUses({ write, onError });
  job.start();
  await vi.advanceTimersByTimeAsync(0);
  write.mockClear();
  write.mockRejectedValueOnce(new Error("the database is away"));
  await vi.advanceTimersByTimeAsync(minute);
  expect([write.mock.calls.length, onError.mock.calls.length]).toEqual([1, 1]);
  await vi.advanceTimersByTimeAsync(3 * minute);
  expect([write.mock.calls.length, onError.mock.calls.length]).toEqual([4, 1]);
  await job.stop();
  expect(write).toHaveBeenCalledTimes(5);
  await vi.advanceTimersByTimeAsync(3 * minute);
  expect(write).toHaveBeenCalledTimes(5);
});

test("a stop succeeds even if the last write fails", async () => {
  const onError = vi.fn();
  const job = writeLastUses({ write: () => Promise.reject(new Error("the database is away")), onError });
  await job.stop();
  expect(onError).toHaveBeenCalledTimes(1);
});

test("a stop takes two seconds if the database does not answer", async () => {
  const write = vi.fn(() => new Promise<void>(() => {}));
  const job = writeLastUses({ write, onError() {} });
  const stopped = vi.fn();
  void job.stop().then(stopped);
  await vi.advanceTimersByTimeAsync(1_999);
  expect([write.mock.calls.length, stopped.mock.calls.length]).toEqual([1, 0]);
  await vi.advanceTimersByTimeAsync(1);
  expect(stopped).toHaveBeenCalled();
});
