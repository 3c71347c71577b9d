import { type Job, repeat } from "./job.ts";

/** Counts are to be seconds old, and a look that finds nothing costs three look-ups. */
const idleMs = 1_000;
const busyMs = 5;

/** Rolls up what has happened, a batch at a time, on any number of processes: one of them counts. */
export function countStatistics(parts: {
  readonly count: () => Promise<boolean>;
  readonly onError: (error: unknown) => void;
}): Job {
  return repeat({ work: parts.count, idleMs, busyMs, onError: parts.onError });
}

/** Silence is a matter of minutes at least. */
const lookMs = 15_000;

/** Looks for numbers and carriers that have gone silent, and shows them. */
export function watchSilence<Found>(parts: {
  readonly look: () => Promise<Found>;
  readonly show: (found: Found) => void;
  readonly onError: (error: unknown) => void;
}): Job {
  return repeat({
    async work() {
      parts.show(await parts.look());
      return false;
    },
    idleMs: lookMs,
    busyMs: lookMs,
    onError: parts.onError,
  });
}
