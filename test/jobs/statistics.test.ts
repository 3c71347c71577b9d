import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { watchSilence } from "../../src/jobs/statistics.ts";

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

test.for([
  { name: "15 s", tookMs: 700, fails: false, pauseMs: 15_000 },
  { name: "20 times as long as it took", tookMs: 4_000, fails: false, pauseMs: 80_000 },
  { name: "20 times as long as it took, also after a failure", tookMs: 8_000, fails: true, pauseMs: 160_000 },
])("the search for silence is repeated after $name", async ({ tookMs, fails, pauseMs }) => {
  const find = vi.fn(async () => {
    await new Promise((resolve) => setTimeout(resolve, tookMs));
    if (fails) throw new Error("statement timeout");
  });
  const job = watchSilence({ find, show() {}, onError() {} });
  job.start();
  await vi.advanceTimersByTimeAsync(tookMs + pauseMs - 1);
  expect(find).toHaveBeenCalledTimes(1);
  await vi.advanceTimersByTimeAsync(1);
  expect(find).toHaveBeenCalledTimes(2);
  const stopped = job.stop();
  await vi.advanceTimersByTimeAsync(tookMs);
  await stopped;
});
