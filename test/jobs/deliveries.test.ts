import { afterEach, beforeEach, expect, test, vi } from "vitest";
import type { Claim } from "../../src/core/webhook.ts";
import { deliverInTime } from "../../src/jobs/deliveries.ts";

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

const nothingDue: Claim = { attempts: [], heldBack: 0 };
const poll = 500;

function startDeliveries(claim: () => Promise<Claim>) {
  const job = deliverInTime({
    claim,
    attempt: () => Promise.reject(new Error("nothing is due")),
    record: async () => {},
    onError() {},
  });
  job.start();
  return job;
}

test("a wake between two polls is followed by a claim at once", async () => {
  const claim = vi.fn(async () => nothingDue);
  const job = startDeliveries(claim);
  await vi.advanceTimersByTimeAsync(poll - 1);
  expect(claim).toHaveBeenCalledTimes(1);
  await vi.advanceTimersByTimeAsync(100);
  expect(claim).toHaveBeenCalledTimes(2);
  job.wake();
  await vi.advanceTimersByTimeAsync(0);
  expect(claim).toHaveBeenCalledTimes(3);
  await job.stop();
});

test("wakes during a claim, which may have been too early to see what they announce, are followed by one more", async () => {
  const first = Promise.withResolvers<Claim>();
  const claim = vi.fn(async () => nothingDue).mockReturnValueOnce(first.promise);
  const job = startDeliveries(claim);
  await vi.advanceTimersByTimeAsync(0);
  job.wake();
  job.wake();
  await vi.advanceTimersByTimeAsync(poll);
  expect(claim).toHaveBeenCalledTimes(1);
  first.resolve(nothingDue);
  await vi.advanceTimersByTimeAsync(10);
  expect(claim).toHaveBeenCalledTimes(2);
  await vi.advanceTimersByTimeAsync(poll - 1);
  expect(claim).toHaveBeenCalledTimes(2);
  await job.stop();
});
