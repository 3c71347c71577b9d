import { type Job, repeat } from "./job.ts";

/** Nobody asks to the minute, and a busy key is one row a minute for each process. */
const idleMs = 60_000;

/** A database that does not answer must not hold up the end of the process for the sake of this. */
const patienceMs = 2_000;

/** Writes down when keys and tokens were last used, and at the stop what is left of it. */
export function writeLastUses(parts: {
  readonly write: () => Promise<void>;
  readonly onError: (error: unknown) => void;
}): Job {
  const { write, onError } = parts;
  const job = repeat({
    async work() {
      await write();
      return false;
    },
    idleMs,
    busyMs: idleMs,
    onError,
  });
  return {
    start: job.start,
    async stop() {
      const written = job.stop().then(write).catch(onError);
      const patience = new Promise<void>((resolve) => {
        setTimeout(resolve, patienceMs).unref();
      });
      await Promise.race([written, patience]);
    },
  };
}
