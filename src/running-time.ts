/**
 * Time during which this process could work. While it is suspended, with its machine or alone, other clocks may go on: answers
 * that arrived meanwhile have not been read when it continues, and a timer would take them for missing.
 */

const readEveryMs = 250;
/** The most that counts between two readings. The event loop of a busy process may take nearly as long for one turn. */
const mostMs = 1_000;

/** Up to the last reading of the clock. */
let passedMs = 0;
let readAt = performance.now();

/** A clock that was set back, as a test may do, stands still until the next reading. */
const now = () => passedMs + Math.min(Math.max(performance.now() - readAt, 0), mostMs);

setInterval(() => {
  passedMs = now();
  readAt = performance.now();
}, readEveryMs).unref();

export const runningTime = {
  /** Milliseconds, for differences only. A suspension counts as a second at most. */
  now,
};

export interface RunningTimer {
  cancel(): void;
}

/**
 * Calls `act` once this process has been running for so long, and has read what arrived before. Does not keep the process from
 * ending.
 */
export function afterRunning(milliseconds: number, act: () => void): RunningTimer {
  const until = runningTime.now() + milliseconds;
  let ending: NodeJS.Immediate | undefined;
  const actIfDue = () => {
    const leftMs = until - runningTime.now();
    if (leftMs > 0) timer = setTimeout(actIfDue, Math.ceil(leftMs)).unref();
    else ending = setImmediate(act);
  };
  let timer = setTimeout(actIfDue, milliseconds).unref();
  return {
    cancel() {
      clearTimeout(timer);
      clearImmediate(ending);
    },
  };
}
