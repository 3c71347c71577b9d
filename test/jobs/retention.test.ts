import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { keepRetention } from "../../src/jobs/retention.ts";

beforeEach(() => {
  vi.useFakeTimers();
});
afterEach(() => {
  vi.useRealTimers();
});

const minute = 60_000;
const isClockSteady = async () => true;

/** A task that has no backlog, unless the test says otherwise. */
function taskOf(name: string) {
  return { name, work: vi.fn<() => Promise<boolean | null>>(async () => false) };
}

const runs = (...tasks: ReturnType<typeof taskOf>[]) => tasks.map(({ work }) => work.mock.calls.length);

test("only a task with a backlog continues at once, until it has none; all run again a minute later", async () => {
  const [deep, shallow, done] = [taskOf("deep"), taskOf("shallow"), taskOf("done")];
  for (let batch = 0; batch < 5; batch++) deep.work.mockResolvedValueOnce(true);
  shallow.work.mockResolvedValueOnce(true);
  const job = keepRetention({ isClockSteady, tasks: [deep, shallow, done], onError() {}, onCaughtUp() {} });
  job.start();
  await vi.advanceTimersByTimeAsync(1_000);
  expect(runs(deep, shallow, done)).toEqual([6, 2, 1]);
  await vi.advanceTimersByTimeAsync(minute);
  expect(runs(deep, shallow, done)).toEqual([7, 3, 2]);
  await job.stop();
});

test("an endless backlog does not keep other tasks from their rounds", async () => {
  const [endless, failing, done] = [taskOf("endless"), taskOf("failing"), taskOf("done")];
  endless.work.mockResolvedValue(true);
  failing.work.mockRejectedValue(new Error("out of reach"));
  const [onError, onCaughtUp] = [vi.fn(), vi.fn()];
  const job = keepRetention({ isClockSteady, tasks: [endless, failing, done], onError, onCaughtUp });
  job.start();
  await vi.advanceTimersByTimeAsync(minute / 2);
  expect(endless.work.mock.calls.length).toBeGreaterThan(1_000);
  expect(runs(failing, done)).toEqual([1, 1]);
  await vi.advanceTimersByTimeAsync(minute);
  expect(runs(failing, done)).toEqual([2, 2]);
  expect(onError.mock.calls.map(([, task]) => task)).toEqual(["failing", "failing"]);
  expect(onCaughtUp).not.toHaveBeenCalled();
  await job.stop();
});

test("catching up is reported once no task has a backlog any more", async () => {
  const [deep, done] = [taskOf("deep"), taskOf("done")];
  deep.work.mockResolvedValueOnce(true).mockResolvedValueOnce(true);
  const onCaughtUp = vi.fn(() => deep.work.mock.calls.length);
  const job = keepRetention({ isClockSteady, tasks: [deep, done], onError() {}, onCaughtUp });
  job.start();
  await vi.advanceTimersByTimeAsync(1_000);
  expect(onCaughtUp.mock.results.map(({ value }) => value)).toEqual([3]);
  await vi.advanceTimersByTimeAsync(minute);
  expect(onCaughtUp.mock.results.map(({ value }) => value)).toEqual([3, 4]);
  await job.stop();
});

test.for([
  { name: "failed", first: () => Promise.reject(new Error("out of reach")) },
  { name: "was held by another process", first: () => Promise.resolve(null) },
])("catching up is not reported after a round in which a task $name, but after the next", async ({
  first,
}) => {
  const [unlucky, deep] = [taskOf("unlucky"), taskOf("deep")];
  unlucky.work.mockImplementationOnce(first);
  deep.work.mockResolvedValueOnce(true);
  const onCaughtUp = vi.fn();
  const job = keepRetention({ isClockSteady, tasks: [unlucky, deep], onError() {}, onCaughtUp });
  job.start();
  await vi.advanceTimersByTimeAsync(1_000);
  expect(runs(unlucky, deep)).toEqual([1, 2]);
  expect(onCaughtUp).not.toHaveBeenCalled();
  await vi.advanceTimersByTimeAsync(minute);
  expect(onCaughtUp).toHaveBeenCalledOnce();
  await job.stop();
});

test("a stop starts no further task, and waits for the current one", async () => {
  const [slow, next] = [taskOf("slow"), taskOf("next")];
  const { promise, resolve } = Promise.withResolvers<boolean>();
  slow.work.mockReturnValueOnce(promise);
  const onCaughtUp = vi.fn();
  const job = keepRetention({ isClockSteady, tasks: [slow, next], onError() {}, onCaughtUp });
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
  expect(onCaughtUp).not.toHaveBeenCalled();
});

test("a stop waits two seconds for a task that never ends", async () => {
  const [stuck, next] = [taskOf("stuck"), taskOf("next")];
  stuck.work.mockReturnValue(new Promise(() => {}));
  const job = keepRetention({ isClockSteady, tasks: [stuck, next], onError() {}, onCaughtUp() {} });
  job.start();
  await vi.advanceTimersByTimeAsync(0);
  const stopped = vi.fn();
  void job.stop().then(stopped);
  await vi.advanceTimersByTimeAsync(1_999);
  expect(stopped).not.toHaveBeenCalled();
  await vi.advanceTimersByTimeAsync(1);
  expect(stopped).toHaveBeenCalled();
});

test("nothing is deleted while the clock is not steady, nor in the middle of a backlog", async () => {
  const deep = taskOf("deep");
  deep.work.mockResolvedValue(true);
  const onCaughtUp = vi.fn();
  const isClockSteady = vi.fn(async () => deep.work.mock.calls.length < 3);
  const job = keepRetention({ isClockSteady, tasks: [deep], onError() {}, onCaughtUp });
  job.start();
  await vi.advanceTimersByTimeAsync(10 * minute);
  expect(runs(deep)).toEqual([3]);
  expect(isClockSteady.mock.calls.length).toBeGreaterThan(10);
  expect(onCaughtUp).not.toHaveBeenCalled();
  isClockSteady.mockResolvedValue(true);
  await vi.advanceTimersByTimeAsync(minute);
  expect(deep.work.mock.calls.length).toBeGreaterThan(3);
  await job.stop();
});

test("while the clock is not steady, a task that cannot go back is reported, and the others do go back", async () => {
  const unlucky = { ...taskOf("unlucky"), goBack: () => Promise.reject(new Error("out of reach")) };
  const next = { ...taskOf("next"), goBack: vi.fn(async () => {}) };
  const onError = vi.fn();
  const isClockSteady = async () => false;
  const job = keepRetention({ isClockSteady, tasks: [unlucky, next], onError, onCaughtUp() {} });
  job.start();
  await vi.advanceTimersByTimeAsync(0);
  expect(onError.mock.calls).toEqual([[new Error("out of reach"), "unlucky"]]);
  expect(next.goBack).toHaveBeenCalledOnce();
  await job.stop();
});

test("while the clock cannot be looked at, that is reported, and nothing is deleted", async () => {
  const task = taskOf("task");
  const [onError, onCaughtUp] = [vi.fn(), vi.fn()];
  const isClockSteady = vi.fn(async () => true).mockRejectedValueOnce(new Error("the database is away"));
  const job = keepRetention({ isClockSteady, tasks: [task], onError, onCaughtUp });
  job.start();
  await vi.advanceTimersByTimeAsync(minute - 1);
  expect(onError.mock.calls).toEqual([[new Error("the database is away"), "retention"]]);
  expect([runs(task), onCaughtUp.mock.calls.length]).toEqual([[0], 0]);
  await vi.advanceTimersByTimeAsync(1);
  expect([runs(task), onCaughtUp.mock.calls.length]).toEqual([[1], 1]);
  await job.stop();
});
