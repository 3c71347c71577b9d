import { type Job, repeat } from "./job.ts";

/** Counts should be at most seconds old, and a run that finds nothing costs four short statements. */
const idleMs = 1_000;
const busyMs = 5;

/** Aggregates new changes into the statistics, batch by batch. Any number of processes may run this; one counts at a time. */
export function countStatistics(parts: {
  readonly count: () => Promise<boolean>;
  readonly onError: (error: unknown) => void;
}): Job {
  return repeat({ work: parts.count, idleMs, busyMs, onError: parts.onError });
}

/** A silence takes minutes at least to show. */
const findEveryMs = 15_000;
/**
 * Finding takes at most a twentieth of the time, also with ten thousand numbers, whose hours take the database seconds. No
 * statement takes ten seconds, so the pause stays below the 300 s after which PhoneproofStatisticsStand fires.
 */
const pausePerRun = 20;

/** Periodically finds the numbers and carriers that have gone silent, and publishes them through `show`. */
export function watchSilence<Found>(parts: {
  readonly find: () => Promise<Found>;
  readonly show: (found: Found) => void;
  readonly onError: (error: unknown) => void;
}): Job {
  return repeat({
    async work() {
      parts.show(await parts.find());
      return false;
    },
    idleMs: findEveryMs,
    busyMs: findEveryMs,
    pausePerRun,
    onError: parts.onError,
  });
}
