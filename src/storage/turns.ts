import { isUnanswered } from "./database-errors.ts";

/** A statement that failed sooner has lost its connection, and the next one may get another. */
const unansweredMs = 1_000;

/** Runs the work once all that was given before has ended. */
export type InTurn = <T>(work: () => Promise<T>) => Promise<T>;

/**
 * A script may ask for many erasures at once. Each is busy for as long as its passes take, so all of them together take one
 * connection, and one core of the database: their statements take turns. If a database that hangs has not answered a statement,
 * those that waited for it fail with it, as they would without turns, instead of one after the other.
 */
export function takeTurns(): InTurn {
  let last: Promise<unknown> = Promise.resolve();
  let outages = 0;
  let outage: unknown;
  return (work) => {
    const outagesBefore = outages;
    const done = last.then(async () => {
      if (outages > outagesBefore) throw outage;
      const since = performance.now();
      try {
        return await work();
      } catch (error) {
        if (isUnanswered(error) && performance.now() - since > unansweredMs) {
          outages += 1;
          outage = error;
        }
        throw error;
      }
    });
    last = done.catch(() => {});
    return done;
  };
}
