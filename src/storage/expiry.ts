import { validityRange } from "../core/project.ts";
import { type Database, runStatement } from "./database.ts";
import { dueExpired, movedColumns, noticeSent, tellMoved } from "./transition.ts";
import { nowMs } from "./verification-row.ts";

/** Up to when everything that was due has been expired, verified or cancelled. Codes are not let go before that. */
export const expiredUpTo = "SELECT done_up_to::timestamptz FROM retention_progress WHERE task = 'expire'";

/** Looked at by one statement, with those of the last one's millisecond: mostly of verifications that are over. */
const codesAtOnce = 5_000;
/** Expired by one statement, with those of the last one's millisecond. */
const dueAtOnce = 500;

/**
 * What is not yet committed when everything until an instant is lies so much later: the shortest validity, less a second for
 * clocks that are put right.
 */
const shortestValidity = `interval '${validityRange.min - 1} seconds'`;

/**
 * Expires what is due in the order of time, by its code, and writes down how far that has come. Event and transition commit
 * together.
 *
 * A row that somebody else holds is skipped: it is being verified, cancelled or expired. The position that is written down never
 * passes such a row, nor an instant at which a creation may still commit: all that began before $1 has ended. $2 is where to go on
 * while something holds the position back; then none is written down. $3 is what has been looked at up to then. Where the clock
 * was set back, as by a standby that takes over, the position goes back with it.
 *
 * Whoever holds the row of the task looks; others find nothing to do.
 */
const expireDueStatement = {
  name: "expire_due",
  text: `
WITH progress AS MATERIALIZED (
  SELECT p.done_up_to::timestamptz AS since, p.done_up_to::timestamptz > ${nowMs} AS ahead
  FROM retention_progress p
  WHERE p.task = 'expire' AND (p.done_up_to::timestamptz > ${nowMs} OR EXISTS (
    SELECT FROM live_code l WHERE l.expires_at > p.done_up_to::timestamptz AND l.expires_at <= ${nowMs}
  ))
  FOR NO KEY UPDATE SKIP LOCKED
),
batch AS MATERIALIZED (
  SELECT l.expires_at, l.verification_id FROM live_code l
  WHERE l.expires_at > (SELECT greatest(since, $2::timestamptz) FROM progress) AND l.expires_at <= ${nowMs}
  ORDER BY l.expires_at FETCH FIRST ${codesAtOnce} ROWS WITH TIES
),
every_due AS MATERIALIZED (
  SELECT b.expires_at, v.id FROM batch b
  CROSS JOIN LATERAL (SELECT * FROM verification WHERE id = b.verification_id OFFSET 0) v
  WHERE v.status = 'pending' AND v.expires_at <= ${nowMs}
),
due AS MATERIALIZED (
  SELECT * FROM every_due ORDER BY expires_at FETCH FIRST ${dueAtOnce} ROWS WITH TIES
),${dueExpired("v.id = ANY (ARRAY(SELECT id FROM due))", "skip")},
looked AS MATERIALIZED (
  SELECT count(*) AS codes, max(b.expires_at) AS last_code,
    (SELECT count(*) FROM every_due) > (SELECT count(*) FROM due) AS is_cut,
    (SELECT max(expires_at) FROM due) AS last_due,
    (SELECT min(d.expires_at) FROM due d WHERE d.id NOT IN (SELECT id FROM expired)) AS held
  FROM batch b
),
passed AS MATERIALIZED (
  SELECT p.ahead, l.codes, l.is_cut OR l.codes >= ${codesAtOnce} AS more, u.upto,
    greatest(p.since, least(
      u.upto, l.held - interval '1 millisecond', $1::timestamptz + ${shortestValidity}
    )) AS over
  FROM progress p CROSS JOIN looked l
  CROSS JOIN LATERAL (SELECT CASE WHEN l.is_cut THEN l.last_due ELSE l.last_code END AS upto) u
),
moved AS (
  UPDATE retention_progress r SET done_up_to = CASE WHEN p.ahead THEN ${nowMs} ELSE p.over END::text
  FROM passed p
  WHERE r.task = 'expire' AND (p.ahead OR p.codes > 0 AND $2::timestamptz IS NULL)
)
SELECT ${movedColumns("expired")}, ${noticeSent("expired")}, coalesce(p.more, false), p.upto::text,
  coalesce(p.over < p.upto, false), coalesce(p.upto >= $3::timestamptz, false)
FROM (VALUES (0)) AS always LEFT JOIN passed p ON true`,
};

/** Expires a batch of what is due, and answers whether more is. */
export type ExpireDue = () => Promise<boolean>;

/** It is asked for now and then: for so long after a transaction has ended, its start may hold back what is written down. */
const settledForMs = 10_000;
/** While something is held back, what lies between it and the present is looked at again so often, or in as long as that takes. */
const lookBackMs = 2_000;

/** `settledUntil` answers an instant before which all that is in the database is there to be seen. */
export function createExpireDue(
  database: Database,
  { settledUntil }: { readonly settledUntil: () => Promise<string> },
): ExpireDue {
  let settled = { until: "-infinity", askedAt: Number.NEGATIVE_INFINITY };
  /** How far has been looked while something holds back what is written down; null where nothing does. */
  let front: string | null = null;
  /**
   * Where the walk goes on that follows to the front, for what was held or came late: null is what is written down, undefined that
   * the walk is over. It takes turns with the front, which must not wait for it: so much may lie between that it takes minutes.
   */
  let behind: string | null | undefined = null;
  let isTurnOfFront = false;
  let lookedBackAt = 0;
  return async () => {
    const now = performance.now();
    if (now - settled.askedAt > settledForMs) {
      // Without an answer the last one holds. Where the database is away, the statement says so.
      settled = await settledUntil().then(
        (until) => ({ until, askedAt: now }),
        () => settled,
      );
    }
    if (behind === undefined && now - lookedBackAt > lookBackMs) behind = null;
    if (behind === null) lookedBackAt = now;
    const isFront = front !== null && (isTurnOfFront || behind === undefined);
    isTurnOfFront = !isFront;
    const [row] = await runStatement(database, expireDueStatement, [
      settled.until,
      isFront ? front : (behind ?? null),
      front,
    ]);
    const [, , , more, upTo, isHeldBack, isAtFront] = row as [
      number,
      number,
      number,
      boolean,
      string | null,
      boolean,
      boolean,
    ];
    tellMoved(database.observer, "expired", row as number[]);
    if (isFront) {
      front = upTo ?? front;
    } else if (upTo !== null) {
      if (isHeldBack || behind !== null) behind = upTo;
      if (front === null) {
        // All that is looked at is new as yet.
        if (behind !== null) [front, behind] = [upTo, undefined];
      } else if (isAtFront || !more) {
        if (behind === null) front = null;
        else behind = undefined;
      }
    } else if (front !== null) {
      // Nothing is due, or another process looks.
      behind = undefined;
    }
    return more || (front !== null && behind !== undefined);
  };
}
