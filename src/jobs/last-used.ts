import { type Job, repeat } from "./job.ts";

/** Last uses need not be exact to the minute, and a busy key then costs each process one update a minute. */
const idleMs = 60_000;

/** Periodically records when keys and tokens were last used, and once more at the stop. */
export function writeLastUses(parts: {
  readonly write: () => Promise<void>;
  readonly onError: (error: unknown) => void;
}): Job {
  const { write, onError } = parts;
  return repeat({
    async work() {
      await write();
      return false;
    },
    finish: write,
    idleMs,
    busyMs: idleMs,
    onError,
  });
}
