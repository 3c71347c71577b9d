import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { expireInTime } from "../../src/jobs/expiry.ts";

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

test("what is due is looked for at least every second, also after a failure, so that none waits two seconds", async () => {
  const expireDue = vi.fn(async () => false);
  const onError = vi.fn();
  const job = expireInTime({ expireDue, onError });
  job.start();
  for (let second = 0; second < 5; second++) {
    if (second === 2) expireDue.mockRejectedValueOnce(new Error("the database is away"));
    expireDue.mockClear();
    await vi.advanceTimersByTimeAsync(1_000);
    expect(expireDue).toHaveBeenCalled();
  }
  expect(onError).toHaveBeenCalledOnce();
  await job.stop();
});

test("while more is due, it is expired without the pause between two looks", async () => {
  const expireDue = vi.fn(async () => true);
  const job = expireInTime({ expireDue, onError() {} });
  job.start();
  await vi.advanceTimersByTimeAsync(1_000);
  expect(expireDue.mock.calls.length).toBeGreaterThanOrEqual(20);
  await job.stop();
});

test("a stop during a run is followed by no other run, even if more is due", async () => {
  const { promise, resolve } = Promise.withResolvers<boolean>();
  const expireDue = vi.fn(() => promise);
  const job = expireInTime({ expireDue, onError() {} });
  job.start();
  await vi.advanceTimersByTimeAsync(0);
  const stopped = job.stop();
  resolve(true);
  await stopped;
  await vi.advanceTimersByTimeAsync(10_000);
  expect(expireDue).toHaveBeenCalledOnce();
});
