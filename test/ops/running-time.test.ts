import { execFile } from "node:child_process";
import { setTimeout as delay, setImmediate } from "node:timers/promises";
import { promisify } from "node:util";
import { expect, onTestFinished, test, vi } from "vitest";
import { afterRunning, runningTime } from "../../src/running-time.ts";
import { blockFor } from "../harness/blocking.ts";

/** Time passes by the fake timers; how much of it the process has been running is `ran`. */
function fakeTime() {
  const time = { ran: 0 };
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  const clock = vi.spyOn(runningTime, "now").mockImplementation(() => time.ran);
  onTestFinished(() => {
    clock.mockRestore();
    vi.useRealTimers();
  });
  return time;
}

test("what is due after some running time waits until the process has been running for as long", async () => {
  const time = fakeTime();
  const act = vi.fn();
  afterRunning(3_000, act);
  // It was suspended for the rest.
  time.ran = 1_000;
  vi.advanceTimersByTime(3_000);
  await setImmediate();
  expect(act).not.toHaveBeenCalled();
  time.ran = 3_000;
  vi.advanceTimersByTime(2_000);
  await setImmediate();
  expect(act).toHaveBeenCalledTimes(1);
  vi.advanceTimersByTime(60_000);
  await setImmediate();
  expect(act).toHaveBeenCalledTimes(1);
});

test("what has arrived when it is due is read first, and may cancel it", async () => {
  const time = fakeTime();
  const act = vi.fn();
  const timer = afterRunning(100, act);
  time.ran = 100;
  vi.advanceTimersByTime(100);
  expect(act).not.toHaveBeenCalled();
  timer.cancel();
  await setImmediate();
  expect(act).not.toHaveBeenCalled();
});

test("what was cancelled while it waited longer never happens", async () => {
  const time = fakeTime();
  const act = vi.fn();
  const timer = afterRunning(1_000, act);
  vi.advanceTimersByTime(1_000);
  timer.cancel();
  time.ran = 60_000;
  vi.advanceTimersByTime(60_000);
  await setImmediate();
  expect(act).not.toHaveBeenCalled();
});

test("what is due later does not keep the process from ending", async () => {
  const program = `
    import { afterRunning, runningTime } from "${new URL("../../src/running-time.ts", import.meta.url)}";
    afterRunning(1e9, () => {});
    afterRunning(0, () => {});
    // The second one looks at the time once more, and waits on.
    runningTime.now = () => -1e9;
    setTimeout(() => console.log("ended"), 50);
  `;
  // A process that does not end is killed, which is an error.
  const { stdout } = await promisify(execFile)(process.execPath, ["--input-type=module", "-e", program], {
    timeout: 120_000,
  });
  expect(stdout).toBe("ended\n");
});

test("it passes no faster than time, and a turn of the event loop counts as a second at most", async () => {
  const began = [performance.now(), runningTime.now()] as const;
  // Several looks at the clock.
  await delay(1_000);
  const ran = runningTime.now() - began[1];
  expect(ran).toBeLessThanOrEqual(performance.now() - began[0] + 1);
  const before = runningTime.now();
  blockFor(1_500);
  expect(runningTime.now() - before).toBeLessThanOrEqual(1_000);
});

test("a test that replaces it does not change it for those after it", async () => {
  const before = runningTime.now();
  const clock = vi.spyOn(runningTime, "now").mockReturnValue(-1e9);
  // Longer than it goes without looking at the clock.
  await delay(500);
  clock.mockRestore();
  expect(runningTime.now()).toBeGreaterThan(before);
});

test("a clock that a test sets back does not set it back for those after it", async () => {
  const before = runningTime.now();
  const clock = vi.spyOn(performance, "now").mockReturnValue(0);
  await delay(500);
  clock.mockRestore();
  expect(runningTime.now()).toBeGreaterThan(before);
});
