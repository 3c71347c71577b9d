import { onTestFinished, vi } from "vitest";

/**
 * Until the end of the test, timers of this length that are set from now on never go off: what has to wait for one of them
 * waits for ever, so that nothing hangs on how long anything takes.
 */
export function withholdTimers(milliseconds: number): void {
  const { setTimeout } = globalThis;
  const never = 2 ** 31 - 1;
  const timers = vi.spyOn(globalThis, "setTimeout");
  timers.mockImplementation(((callback: () => void, delay?: number, ...given: []) =>
    setTimeout(callback, delay === milliseconds ? never : delay, ...given)) as typeof setTimeout);
  onTestFinished(() => timers.mockRestore());
}
