import { type Job, repeat } from "./job.ts";

/** Verifications must expire within two seconds of `expires_at`; half a second leaves room for a slow run. */
const idleMs = 500;
/** Limits a backlog of hours to some ten thousand expiries a second, beside live traffic. */
const busyMs = 50;

/** Expires verifications that are due. Any number of processes may run this; one works at a time. */
export function expireInTime(parts: {
  /** Returns whether more is due. */
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
