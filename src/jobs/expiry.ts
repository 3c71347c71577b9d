import { type Job, repeat } from "./job.ts";

/** The promise is two seconds from `expires_at`; half a second leaves room for a slow round. */
const idleMs = 500;
/** A backlog of hours is drained at some ten thousand a second at most, beside live traffic. */
const busyMs = 50;

/** Moves what has expired; of any number of processes one at a time. */
export function expireInTime(parts: {
  /** Answers whether more is due. */
  readonly expireDue: () => Promise<boolean>;
  readonly onError: (error: unknown) => void;
}): Job {
  return repeat({
    work: parts.expireDue,
    idleMs,
    busyMs,
    onError: parts.onError,
  });
}
