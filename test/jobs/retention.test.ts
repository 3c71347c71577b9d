import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { keepRetention } from "../../src/jobs/retention.ts";

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

/** Where a test does not say otherwise nothing more is waiting for it. */
function taskOf(name: string) {
  return { name, work: vi.fn(async () => false) };
}

const runs = (...tasks: ReturnType<typeof taskOf>[]) => tasks.map(({ work }) => work.mock.calls.length);

test("a stop begins no further task, and waits for the one under way", async () => {
  const [slow, next] = [taskOf("slow"), taskOf("next")];
  const { promise, resolve } = Promise.withResolvers<boolean>();
  slow.work.mockReturnValueOnce(promise);
  const job = keepRetention({ tasks: [slow, next], onError() {} });
  job.start();
  await vi.advanceTimersByTimeAsync(0);
  const stopped = vi.fn();
  void job.stop().then(stopped);
  await vi.advanceTimersByTimeAsync(1_000);
  expect(stopped).not.toHaveBeenCalled();
  resolve(true);
  await vi.advanceTimersByTimeAsync(0);
  expect(stopped).toHaveBeenCalled();
  await vi.advanceTimersByTimeAsync(600_000);
  expect(runs(slow, next)).toEqual([1, 0]);
});

test("a task that is never done is waited for two seconds", async () => {
  const [stuck, next] = [taskOf("stuck"), taskOf("next")];
  stuck.work.mockReturnValue(new Promise(() => {}));
  const job = keepRetention({ tasks: [stuck, next], onError() {} });
  job.start();
  await vi.advanceTimersByTimeAsync(0);
  const stopped = vi.fn();
  void job.stop().then(stopped);
  await vi.advanceTimersByTimeAsync(1_999);
  expect(stopped).not.toHaveBeenCalled();
  await vi.advanceTimersByTimeAsync(1);
  expect(stopped).toHaveBeenCalled();
});
