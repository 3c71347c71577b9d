import { type Database, runStatement } from "./database.ts";
import { expiredLive, expiredTest, noticeSent, transitionEffects } from "./transition.ts";
import { nowMs } from "./verification-row.ts";

/** Up to when everything that was due has been expired, verified or cancelled. Codes are not let go before that. */
export const expiredUpTo = "SELECT done_up_to::timestamptz FROM retention_progress WHERE task = 'expire'";

/** Codes that are looked at by one statement, and those of the last one's millisecond. */
const batchSize = 500;

/** What is not yet committed when everything until an instant is: no verification is valid for less than a minute. */
const shortestValidity = "interval '59 seconds'";

/**
 * Expires what is due in the order of time, by its code, and writes down how far that has come. Event and transition commit
 * together.
 *
 * A row that somebody else holds is skipped: it is being verified, cancelled or expired. The next round looks at it again,
 * since what is written down stays before it, and before all that may yet be committed: $1 is the instant until which
 * everything is. $2 is where a round goes on whose batches are not written down, because of such a row. A clock that was set
 * back, as by a standby that takes over, takes what is written down with it.
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
  ORDER BY l.expires_at FETCH FIRST ${batchSize} ROWS WITH TIES
),
due AS MATERIALIZED (
  SELECT b.expires_at, v.id FROM batch b
  CROSS JOIN LATERAL (SELECT * FROM verification WHERE id = b.verification_id OFFSET 0) v
  WHERE v.status = 'pending' AND v.expires_at <= ${nowMs}
),
locked AS MATERIALIZED (
  SELECT v.id FROM verification v
  WHERE v.id = ANY (ARRAY(SELECT id FROM due)) AND v.status = 'pending' AND v.expires_at <= ${nowMs}
  ORDER BY v.id FOR NO KEY UPDATE SKIP LOCKED
),
expired AS (
  UPDATE verification v SET status = 'expired'
  WHERE v.id = ANY (ARRAY(SELECT id FROM locked)) AND v.status = 'pending' AND v.expires_at <= ${nowMs}
  RETURNING v.id, v.webhook_configuration_id, v.environment
),${transitionEffects("expired")},
passed AS MATERIALIZED (
  SELECT count(*) AS found, max(b.expires_at) AS upto,
    (SELECT min(d.expires_at) FROM due d WHERE d.id NOT IN (SELECT id FROM expired)) AS held
  FROM batch b
),
moved AS (
  UPDATE retention_progress r SET done_up_to = CASE
      WHEN progress.ahead THEN ${nowMs}
      ELSE greatest(progress.since, least(
        passed.upto, passed.held - interval '1 millisecond', $1::timestamptz + ${shortestValidity}
      ))
    END::text
  FROM progress, passed
  WHERE r.task = 'expire' AND (progress.ahead OR passed.found > 0 AND $2::timestamptz IS NULL)
)
SELECT ${expiredLive}, ${expiredTest}, ${noticeSent("expired")}, found >= ${batchSize}, held IS NOT NULL, upto::text
FROM passed`,
};

/** Expires a batch of what is due, and answers whether more is. */
export type ExpireDue = () => Promise<boolean>;

/** It is asked for now and then: while a transaction takes that long, what is due may wait for as long. */
const settledForMs = 10_000;

/** `settledUntil` answers an instant before which all that is in the database is there to be seen. */
export function createExpireDue(
  database: Database,
  { settledUntil }: { readonly settledUntil: () => Promise<string> },
): ExpireDue {
  let settled = { until: "-infinity", askedAt: Number.NEGATIVE_INFINITY };
  let goingOnAt: string | null = null;
  return async () => {
    const now = performance.now();
    if (now - settled.askedAt > settledForMs) {
      settled = { until: await settledUntil(), askedAt: now };
    }
    const [row] = await runStatement(database, expireDueStatement, [settled.until, goingOnAt]);
    const [live, test, , isFull, isHeld, upTo] = row as [number, number, number, boolean, boolean, string];
    database.observer.moved("expired", "live", live);
    database.observer.moved("expired", "test", test);
    goingOnAt = isFull && (isHeld || goingOnAt !== null) ? upTo : null;
    return isFull;
  };
}
