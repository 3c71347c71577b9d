import type { Clock } from "../core/clock.ts";
import { type Database, runStatement } from "./database.ts";
import { epochMs, nowMs } from "./verification-row.ts";

const statement = { name: "clock", text: `SELECT ${epochMs(nowMs)}` };

/** How long the database's time is extrapolated by this process's clocks before the database is asked again. */
const trustedMs = 60_000;
/**
 * If the monotonic and the wall clock differ by this much, one of them was stopped or set, and neither tells how much time has
 * passed.
 */
const disagreementMs = 1_000;

/**
 * The clock for new ids. An id begins with its creation time, and tables are passed over in id order, so the time must come
 * from the clock that also stamps the rows: the database's.
 */
export function createDatabaseClock(database: Database): Clock {
  let known = { ms: 0, steady: Number.NEGATIVE_INFINITY, wall: 0 };
  let asking: Promise<number> | undefined;

  /**
   * Takes in a time that the database has reported, which is late by its time on the network. A value that is only slightly
   * behind the extrapolated time is therefore ignored; otherwise the clock would go backwards, and so would ids made one after
   * the other.
   */
  function learn(ms: number): void {
    const steady = performance.now();
    const expected = known.ms + steady - known.steady;
    const isOff = ms > expected || ms < expected - trustedMs;
    known = { ms: isOff ? ms : expected, steady, wall: Date.now() };
  }

  async function ask(): Promise<number> {
    try {
      const [row] = await runStatement(database, statement, []);
      learn(row?.[0] as number);
      return Math.floor(known.ms);
    } finally {
      asking = undefined;
    }
  }

  return {
    now() {
      const passed = performance.now() - known.steady;
      if (passed < trustedMs && Math.abs(Date.now() - known.wall - passed) < disagreementMs) {
        return Math.floor(known.ms + passed);
      }
      asking ??= ask();
      return asking;
    },
    learn,
  };
}
