/**
 * The longest that a call may take while the database is slow. Each of its statements has a limit of its own, but it may need
 * several, one after the other: to look up its key, to find its verification, to expire that, to be charged if it fails.
 */

import { runningTime } from "./running-time.ts";

/** A response is promised within 15 s, of which a request may have waited one before it was read. */
const answerWithinMs = 13_500;
const checkForLateEveryMs = 500;

interface Unanswered {
  /** By `runningTime`. */
  readonly since: number;
  refuse: () => void;
}

const unanswered = new Set<Unanswered>();
const nothing = () => {};

/** Calls `refuse` once if the call, begun now or at `since` by `runningTime`, has not ended in time. Returns what ends it. */
export function limitAnswerTime(refuse: () => void, since = runningTime.now()): () => void {
  const call = { since, refuse };
  unanswered.add(call);
  return () => {
    unanswered.delete(call);
    // A Set replaces its table again and again, and the collector of young garbage takes what a replaced one holds for being in
    // use. With the requests in it, reads took 1.6 times as much processor time.
    call.refuse = nothing;
  };
}

function refuseLate(): void {
  const upTo = runningTime.now() - answerWithinMs;
  for (const call of unanswered) {
    if (call.since > upTo) continue;
    unanswered.delete(call);
    call.refuse();
  }
}

setInterval(refuseLate, checkForLateEveryMs).unref();
