import { type Job, repeat } from "./job.ts";

/** The promise is two seconds from `expires_at`; half a second leaves room for a slow round. */
const idleMs = 500;
/** A backlog of hours is drained at some ten thousand a second at most, beside live traffic. */
const batchSize = 500;
const busyMs = 50;

/** Moves what has expired, on any number of processes at once: each skips the rows that another holds. */
export function expireInTime(parts: {
  readonly expireDue: (limit: number) => Promise<number>;
  readonly onError: (error: unknown) => void;
}): Job {
  return repeat({
    work: async () => (await parts.expireDue(batchSize)) === batchSize,
    idleMs,
    busyMs,
    onError: parts.onError,
  });
}
