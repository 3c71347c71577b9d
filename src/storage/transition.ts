/**
 * What every transition does besides changing the verification, in the same statement: it writes the event, queues the event's
 * webhook delivery, and notifies the processes that wait for it.
 */

import { environments } from "../core/project.ts";
import type { StorageObserver } from "./observer.ts";
import { nowMs } from "./verification-row.ts";

/**
 * Channel of the transition notices, comma-separated: `uuid:status`, or `uuid:status:due` if a webhook delivery may be due.
 * Never a phone: notices are in the server's log. The status is for processes of 0.1.0, which ignore a notice without one and
 * do not read what follows it.
 */
export const transitionChannel = "phoneproof_transition";

/** Channel for the ids, comma-separated, of verifications that have a new hint. It does not even carry the hint's reason. */
export const hintChannel = "phoneproof_hint";

/** The time of a transition, unless its statement reads the clock itself. Never before the start of its transaction. */
export const transitionTime = "date_trunc('milliseconds', statement_timestamp())";

/** Notices in one payload: 100 × 51 bytes stay under the 8,000 a payload may have. */
export const noticesInPayload = 100;

/**
 * CTEs `<transition>_event`, `<transition>_delivery` and `<transition>_notice` over a CTE `<transition>` that returns the
 * changed verifications' `id` and `webhook_configuration_id`. The notice is sent only if the statement's own SELECT reads it:
 * `noticesSent`.
 *
 * The delivery goes to the configuration that the verification was created under, whichever is in force by now. If that one is
 * disabled, the delivery is stored as disabled, so that it can be seen and sent by hand.
 *
 * `occurredAt`: an SQL expression in whole milliseconds. It must not be earlier than the verification's latest timestamp.
 */
export function transitionEffects(
  transition: "verified" | "cancelled" | "expired",
  occurredAt = transitionTime,
): string {
  return `
${transition}_event AS (
  INSERT INTO event (verification_id, type, occurred_at)
  SELECT id, 'verification.${transition}', ${occurredAt} FROM ${transition}
),
${transition}_delivery AS (
  INSERT INTO webhook_delivery (verification_id, webhook_configuration_id, state, attempts, next_attempt_at)
  SELECT t.id, w.id,
    CASE WHEN w.disabled_at IS NULL THEN 'pending' ELSE 'disabled' END::webhook_delivery_state, 0,
    CASE WHEN w.disabled_at IS NULL THEN date_trunc('milliseconds', statement_timestamp()) END
  FROM ${transition} t
  CROSS JOIN LATERAL (SELECT * FROM webhook_configuration WHERE id = t.webhook_configuration_id OFFSET 0) w
  WHERE 'verification.${transition}' = ANY (w.events)
),
${transition}_notice AS (
  SELECT pg_notify('${transitionChannel}', string_agg(notice, ','))
  FROM (
    SELECT id || ':${transition}' || CASE WHEN webhook_configuration_id IS NULL THEN '' ELSE ':due' END AS notice,
      (row_number() OVER () - 1) / ${noticesInPayload} AS payload
    FROM ${transition}
  ) numbered
  GROUP BY payload
)`;
}

/** A scalar subquery that makes Postgres run the notice CTE of `transitionEffects`. */
export function noticesSent(transition: "verified" | "cancelled" | "expired"): string {
  return `(SELECT count(*) FROM ${transition}_notice)::float8`;
}

/**
 * CTEs `locked` and `expired` with the effects of the transition: expires those verifications `v` that satisfy the condition
 * `which` and are due, or satisfy another condition `due`. Rows are locked in id order, and this is checked again on the locked
 * rows.
 */
export function expireDue(which: string, held: "wait" | "skip", due = `v.expires_at <= ${nowMs}`): string {
  const isDue = `v.status = 'pending' AND (${due})`;
  return `
locked AS MATERIALIZED (
  SELECT v.id FROM verification v
  WHERE ${which} AND ${isDue}
  ORDER BY v.id FOR NO KEY UPDATE${held === "skip" ? " SKIP LOCKED" : ""}
),
expired AS (
  UPDATE verification v SET status = 'expired'
  WHERE v.id = ANY (ARRAY(SELECT id FROM locked)) AND ${isDue}
  RETURNING v.id, v.webhook_configuration_id, v.environment
),${transitionEffects("expired")}`;
}

/**
 * Two columns for `reportTransitions`: how many rows the CTE of the transition returns per environment. It must return `environment`.
 */
export function transitionCounts(transition: "expired" | "cancelled"): string {
  return environments
    .map((environment) => `(SELECT count(*) FROM ${transition} WHERE environment = '${environment}')::float8`)
    .join(", ");
}

/** Reports the counts to the observer. `moved` begins with the values of `transitionCounts`. Returns their sum. */
export function reportTransitions(
  observer: StorageObserver,
  transition: "expired" | "cancelled",
  moved: readonly unknown[],
): number {
  let sum = 0;
  for (const [index, environment] of environments.entries()) {
    const count = moved[index] as number;
    observer.moved(transition, environment, count);
    sum += count;
  }
  return sum;
}
