import { onTestFinished, vi } from "vitest";
import { runningTime } from "../../src/running-time.ts";

/**
 * Until the end of the test, timers with exactly this delay, but for a rounding error, that are set from now on never fire.
 * What needs one of them waits forever, so that the test does not depend on timing.
 */
export function suppressTimers(milliseconds: number): void {
  changeTimers((delay = 0) => (Math.round(delay) === milliseconds ? 2 ** 31 - 1 : delay));
}

/** Until the end of the test, timers with this delay, or up to 10 % less, that are set from now on fire after `soonMs`. */
export function shortenTimers(milliseconds: number, soonMs = 50): void {
  changeTimers((delay = 0) => (delay <= milliseconds && delay > milliseconds * 0.9 ? soonMs : delay));
}

/** Until the end of the test, a jump of a faked `performance` is no suspension of this process. */
export function runAllTheTime(): void {
  const clock = vi.spyOn(runningTime, "now").mockImplementation(() => performance.now());
  onTestFinished(() => clock.mockRestore());
}

function changeTimers(change: (delay: number | undefined) => number | undefined): void {
  for (const name of ["setTimeout", "setInterval"] as const) {
    const { [name]: set } = globalThis;
    const timers = vi.spyOn(globalThis, name);
    timers.mockImplementation(((callback: () => void, delay?: number, ...given: []) =>
      set(callback, change(delay), ...given)) as typeof setTimeout & typeof setInterval);
    onTestFinished(() => timers.mockRestore());
  }
}
