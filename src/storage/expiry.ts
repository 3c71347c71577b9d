import { validityRange } from "../core/project.ts";
import { type Database, runStatement } from "./database.ts";
import { expireDue, noticesSent, reportTransitions, transitionCounts } from "./transition.ts";
import { nowMs } from "./verification-row.ts";

/** The instant up to which everything that was due has been expired, verified or cancelled. No code is released before that. */
export const expiredUpTo = "SELECT done_up_to::timestamptz FROM retention_progress WHERE task = 'expire'";

/**
 * Codes that one statement looks at, plus ties with the last one's millisecond; most belong to verifications that have ended.
 */
const maxCodesPerBatch = 5_000;
/** Verifications that one statement expires, plus ties with the last one's millisecond. */
const maxDuePerBatch = 500;

/**
 * If everything up to an instant has committed, what has not yet committed expires at least this much later: the shortest
 * validity, less a second for clock corrections.
 */
const shortestValidity = `interval '${validityRange.min - 1} seconds'`;

/**
 * Expires due verifications in order of expiry, found by their codes, and records the position reached. Event and transition
 * commit together.
 *
 * A row that another transaction has locked is skipped: it is being verified, cancelled or expired. The recorded position never
 * passes such a row, nor an instant at which a creation may still commit: all transactions that began before $1 have ended. $2
 * is where to continue while something holds the position back; the position is then not recorded. $3 is the front, up to which
 * rows have already been looked at. If the clock was set back, as by a standby that takes over, the position goes back with it.
 *
 * Only the process that locks the task's row works; others find nothing to do.
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
  ORDER BY l.expires_at FETCH FIRST ${maxCodesPerBatch} ROWS WITH TIES
),
every_due AS MATERIALIZED (
  SELECT b.expires_at, v.id FROM batch b
  CROSS JOIN LATERAL (SELECT * FROM verification WHERE id = b.verification_id OFFSET 0) v
  WHERE v.status = 'pending' AND v.expires_at <= ${nowMs}
),
due AS MATERIALIZED (
  SELECT * FROM every_due ORDER BY expires_at FETCH FIRST ${maxDuePerBatch} ROWS WITH TIES
),${expireDue("v.id = ANY (ARRAY(SELECT id FROM due))", "skip")},
looked AS MATERIALIZED (
  SELECT count(*) AS codes, max(b.expires_at) AS last_code,
    (SELECT count(*) FROM every_due) > (SELECT count(*) FROM due) AS is_cut,
    (SELECT max(expires_at) FROM due) AS last_due,
    (SELECT min(d.expires_at) FROM due d WHERE d.id NOT IN (SELECT id FROM expired)) AS held
  FROM batch b
),
passed AS MATERIALIZED (
  SELECT p.ahead, l.codes, l.is_cut OR l.codes >= ${maxCodesPerBatch} AS more, u.upto,
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
SELECT ${transitionCounts("expired")}, ${noticesSent("expired")}, coalesce(p.more, false), p.upto::text,
  coalesce(p.over < p.upto, false), coalesce(p.upto >= $3::timestamptz, false)
FROM (VALUES (0)) AS always LEFT JOIN passed p ON true`,
};

/** Expires a batch of due verifications; resolves to whether more are due. */
export type ExpireDue = () => Promise<boolean>;

/**
 * How long an answer of `commitHorizon` is reused: for that long an ended transaction may still hold the recorded position back.
 */
const settledForMs = 10_000;
/**
 * While the recorded position is held back, the span from there to the front is walked again at this interval, or as often as
 * the walk's own duration allows.
 */
const lookBackMs = 2_000;

/** `commitHorizon` resolves to an instant before which everything has committed that ever will. */
export function createExpireDue(
  database: Database,
  { commitHorizon }: { readonly commitHorizon: () => Promise<string> },
): ExpireDue {
  let settled = { until: "-infinity", askedAt: Number.NEGATIVE_INFINITY };
  /** The position reached by the front walk while something holds the recorded position back; null if nothing does. */
  let front: string | null = null;
  /**
   * Where the second walk continues, which goes from the recorded position to the front, for rows that were locked or committed
   * late. Null: at the recorded position; undefined: the walk is done. It alternates with the front, which must not wait for
   * it: the span may be so large that the walk takes minutes.
   */
  let behind: string | null | undefined = null;
  let isTurnOfFront = false;
  let lookedBackAt = 0;
  return async () => {
    const now = performance.now();
    if (now - settled.askedAt > settledForMs) {
      // If this fails, the last answer still holds. If the database is unavailable, the statement below says so.
      settled = await commitHorizon().then(
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
    reportTransitions(database.observer, "expired", row as number[]);
    if (isFront) {
      front = upTo ?? front;
    } else if (upTo !== null) {
      if (isHeldBack || behind !== null) behind = upTo;
      if (front === null) {
        // Nothing here was looked at before, so this walk becomes the front.
        if (behind !== null) [front, behind] = [upTo, undefined];
      } else if (isAtFront || !more) {
        if (behind === null) front = null;
        else behind = undefined;
      }
    } else if (front !== null) {
      // Nothing is due, or another process is working.
      behind = undefined;
    }
    return more || (front !== null && behind !== undefined);
  };
}
