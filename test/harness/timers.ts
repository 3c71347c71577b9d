import { onTestFinished, vi } from "vitest";

/**
 * Until the end of the test, timers of this length that are set from now on never go off: what has to wait for one of them
 * waits for ever, so that nothing hangs on how long anything takes.
 */
export function withholdTimers(milliseconds: number): void {
  changeTimers((delay) => (delay === milliseconds ? 2 ** 31 - 1 : delay));
}

/** Until the end of the test, timers of this length, or of somewhat less, that are set from now on go off soon: after `soonMs`. */
export function hastenTimers(milliseconds: number, soonMs = 50): void {
  changeTimers((delay = 0) => (delay <= milliseconds && delay > milliseconds * 0.9 ? soonMs : delay));
}

function changeTimers(change: (delay: number | undefined) => number | undefined): void {
  const { setTimeout } = globalThis;
  const timers = vi.spyOn(globalThis, "setTimeout");
  timers.mockImplementation(((callback: () => void, delay?: number, ...given: []) =>
    setTimeout(callback, change(delay), ...given)) as typeof setTimeout);
  onTestFinished(() => timers.mockRestore());
}
