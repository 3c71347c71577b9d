import type { AttemptResult, Claim, ClaimBounds } from "../core/webhook.ts";
import { createAttemptResults } from "./attempt-results.ts";
import { type Database, runStatement } from "./database.ts";
import { createDeliveryClaims } from "./delivery-claims.ts";
import { nowMs } from "./verification-row.ts";

/**
 * The outbox. Transitions fill it in their own statements. Any number of processes claim due deliveries here concurrently and
 * write the results back.
 *
 * Invariant: `next_attempt_at` is the lease of an attempt under way. A claim moves it past the longest exchange, so a delivery
 * whose process died becomes due again by itself. A result decides the delivery's state only if no other attempt has begun
 * since (`attempts`) and nobody has requested a resend (`resends`): a process that comes back after its lease changes nothing
 * that a newer attempt has decided.
 */
export interface WebhookDeliveries {
  claim(bounds: ClaimBounds): Promise<Claim>;
  record(result: AttemptResult): Promise<void>;
  /** Corrects the times of the next attempts after the database's clock was set back. */
  bringForward(): Promise<void>;
}

export function createWebhookDeliveries(
  database: Database,
  options: {
    /** A version was disabled; its id is a UUID. */
    readonly onDisabled: (webhookId: string, reason: string) => void;
  },
): WebhookDeliveries {
  return {
    claim: createDeliveryClaims(database),
    record: createAttemptResults(database, options),

    async bringForward() {
      for (let since = "-infinity", more = true; more; ) {
        const [row] = await runStatement(database, bringForwardStatement, [since]);
        more = row?.[0] === true;
        since = row?.[1] as string;
      }
    },
  };
}

/** Deliveries that one statement looks at, plus ties with the last one's millisecond. */
const lookedAtOnce = 1_000;

/**
 * Brings forward what would otherwise wait for as long as the clock was ahead. What has not been attempted, or was sent again,
 * was due at once. The rest, leases included, keeps its distance from the attempt before, which is one that began later than
 * now. That is done once for each: afterwards the time is before that attempt. A distance longer than the clock was ahead is
 * left: it is at most doubled.
 *
 * Looks at a batch after $1 and returns the last time of it.
 */
const bringForwardStatement = {
  name: "bring_forward_webhook_attempts",
  text: `
WITH batch AS MATERIALIZED (
  SELECT d.verification_id, d.attempts, d.next_attempt_at, d.attempts = 0 OR (d.claim IS NULL AND d.resends > 0) AS at_once
  FROM webhook_delivery d
  WHERE d.state = 'pending' AND d.next_attempt_at > greatest($1::timestamptz, ${nowMs})
  ORDER BY d.next_attempt_at FETCH FIRST ${lookedAtOnce} ROWS WITH TIES
),
early AS MATERIALIZED (
  SELECT b.verification_id, b.next_attempt_at,
    ${nowMs} + CASE WHEN b.at_once THEN interval '0' ELSE b.next_attempt_at - a.started_at END AS corrected
  FROM batch b
  LEFT JOIN LATERAL (
    SELECT started_at FROM webhook_attempt WHERE verification_id = b.verification_id AND number = b.attempts OFFSET 0
  ) a ON true
  WHERE b.at_once OR (
    b.next_attempt_at >= a.started_at AND b.next_attempt_at - a.started_at < a.started_at - ${nowMs}
  )
),
locked AS MATERIALIZED (
  SELECT d.verification_id FROM webhook_delivery d
  WHERE d.verification_id = ANY (ARRAY(SELECT verification_id FROM early))
  ORDER BY d.verification_id FOR NO KEY UPDATE
),
moved AS (
  UPDATE webhook_delivery d SET next_attempt_at = e.corrected
  FROM early e
  WHERE d.verification_id = ANY (ARRAY(SELECT verification_id FROM locked))
    AND d.verification_id = e.verification_id AND d.next_attempt_at = e.next_attempt_at
)
SELECT count(*) >= ${lookedAtOnce}, max(next_attempt_at)::text FROM batch`,
};
