import { type Database, runStatement } from "./database.ts";
import { epochMs, nowMs } from "./verification-row.ts";

/** A jump of the database's clock between two readings. Times as ISO 8601 in UTC. */
export interface ClockJump {
  readonly from: string;
  readonly to: string;
}

export interface RetentionClock {
  /** Reads the clock; false while the last jump is too recent to believe the time after it. */
  isSteady(): Promise<boolean>;
}

/**
 * The longest time between two readings that is no jump. A shorter one may go unnoticed: what it erases early would have been erased
 * within a day.
 */
const longestStep = "interval '1 day'";
/**
 * How long somebody has to correct the clock before retention believes it. A machine may also start with a wrong time, and learn
 * the right one a moment later.
 */
const wait = "interval '1 hour'";

const isJump = (before: string, now: string) =>
  `${before} NOT BETWEEN ${now} - ${longestStep} AND ${now} + ${longestStep}`;

const jumpsNow = isJump("c.seen_at", "excluded.seen_at");

/**
 * A clock that is corrected in short steps, none of which is a jump, goes back behind the last jump. The wait then counts from
 * where the clock has arrived: until it reached the time of the jump again, retention would wait for as long as the jump was.
 */
const hasGoneBack = "c.jumped_to > excluded.seen_at";

/**
 * The first reading in a database has none before it, though an earlier version may have filled it with a right clock or a wrong one:
 * retention waits unless there is no verification. If the newest is far from now, the clock has jumped; if it is not, it may have
 * been created by the same wrong clock, which is perhaps corrected meanwhile.
 */
const newest = "(SELECT created_at FROM verification ORDER BY id DESC LIMIT 1)";

/**
 * Whether the clock is still steady. Part of each statement that erases or deletes: the clock may jump between the last reading
 * and the statement, and another process may then read it first.
 */
export const isStillSteady = `EXISTS (
  SELECT FROM retention_clock c
  WHERE NOT (${isJump("c.seen_at", "now()")}) AND coalesce(c.jumped_to <= now() - ${wait}, true)
)`;

/** Any number of processes read the clock: what one has seen, all others know, and also those that start after it has ended. */
const statement = {
  name: "retention_clock",
  text: `
INSERT INTO retention_clock AS c (seen_at, jumped_from, jumped_to)
SELECT now, CASE WHEN ${isJump("newest", "now")} THEN newest END, CASE WHEN newest IS NOT NULL THEN now END
FROM (SELECT ${nowMs} AS now, ${newest} AS newest) reading
ON CONFLICT (id) DO UPDATE SET
  seen_at = excluded.seen_at,
  jumped_from = CASE WHEN ${jumpsNow} THEN c.seen_at ELSE c.jumped_from END,
  jumped_to = CASE WHEN ${jumpsNow} OR ${hasGoneBack} THEN excluded.seen_at ELSE c.jumped_to END
RETURNING coalesce(c.jumped_to <= ${nowMs} - ${wait}, true), ${epochMs("c.jumped_from")}, ${epochMs("c.jumped_to")}`,
};

/**
 * Tells whether retention may believe the database's clock. What it erases cannot be brought back, so it waits after a jump. It
 * cannot tell a jump from a long time without a worker, and waits after that, too.
 */
export function createRetentionClock(
  database: Database,
  options: {
    /** Called once for each jump that makes retention wait. */
    readonly onJump: (jump: ClockJump) => void;
    /** Called once if retention waits only because no worker has read the clock before. */
    readonly onFirstReading: () => void;
    /** Called after each reading, with whether retention waits because of a jump. */
    readonly onWait: (waits: boolean) => void;
  },
): RetentionClock {
  /** The time before the jump that was reported last; null after a first reading. */
  let reported: number | null | undefined;

  return {
    async isSteady() {
      const [row = []] = await runStatement(database, statement, []);
      const [isSteady, from, to] = row as [boolean, number | null, number];
      options.onWait(!isSteady && from !== null);
      if (isSteady || from === reported) return isSteady;
      // Not by the time it jumped to, which may follow the clock back.
      reported = from;
      if (from === null) options.onFirstReading();
      else options.onJump({ from: new Date(from).toISOString(), to: new Date(to).toISOString() });
      return isSteady;
    },
  };
}
