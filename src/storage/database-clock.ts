import type { Clock } from "../core/clock.ts";
import { type Database, runStatement } from "./database.ts";
import { epochMs, nowMs } from "./verification-row.ts";

const statement = { name: "clock", text: `SELECT ${epochMs(nowMs)}` };

/** What the database said is gone on from for so long, by this process's clocks. */
const believedMs = 60_000;
/** They stand still, or are set, apart from each other: then neither tells how much time has passed. */
const disagreementMs = 1_000;

/** Ids bear the time they were made at, and are gone by in its order: so it is the time that the database puts beside them. */
export function createDatabaseClock(database: Database): Clock {
  let known = { ms: 0, steady: Number.NEGATIVE_INFINITY, wall: 0 };
  let asking: Promise<number> | undefined;

  /** An answer is as old as it was long on its way: by that alone the time does not go back, nor ids made one after the other. */
  function learn(ms: number): void {
    const steady = performance.now();
    const expected = known.ms + steady - known.steady;
    const isOff = ms > expected || ms < expected - believedMs;
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
      if (passed < believedMs && Math.abs(Date.now() - known.wall - passed) < disagreementMs) {
        return Math.floor(known.ms + passed);
      }
      asking ??= ask();
      return asking;
    },
    learn,
  };
}
