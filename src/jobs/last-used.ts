import { type Job, repeat } from "./job.ts";

/** Nobody asks to the minute, and a busy key is one row a minute for each process. */
const idleMs = 60_000;

/** Writes down when keys and tokens were last used, and at the stop what is left of it. */
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
