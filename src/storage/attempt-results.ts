import type { AttemptResult } from "../core/webhook.ts";
import { flagArray, plainArray, textArray } from "./array-literal.ts";
import { createBatcher } from "./batcher.ts";
import { type Database, tryStatement } from "./database.ts";
import { nowMs } from "./verification-row.ts";

const goneReason = "the endpoint answered 410 Gone";
const failingReason = "every attempt failed for five days";
/**
 * Failures of one event after which it counts against its endpoint. It is tried this often within some three quarters of an
 * hour.
 */
const minFailuresToDisable = 4;

/**
 * Records results and what they imply for their endpoints. A success ends a period of failures. A 410, or five days of nothing
 * but failures, disables every version of the URL. Five days may pass between the last attempt of one event and the next event,
 * so the first failure of that event does not disable anything, but its fourth does. A 410 to a request that began before the
 * URL was last set does not undo that setting. A rotation of the secret does not count as setting the URL, and is recognised by
 * a secret that differs from the one before: setting a URL again keeps its secret.
 *
 * The versions may have changed between being read and being locked. When a period of failures began, and whether it has lasted
 * five days, is then left to the next result. A 410 does not depend on that: it counts if the version is still enabled, unless
 * a period of failures has ended meanwhile, possibly because the URL was set again.
 *
 * A version that takes the place of a changed one meanwhile, as a rotation of the secret makes one, is not among those read: it
 * would stay enabled, or keep a period of failures that has ended. The statement then fails as a whole, with a division by zero, and
 * is repeated.
 *
 * A result that is already recorded is ignored: a process that got no answer from the database may send it a second time. The
 * endpoint's response is not kept for an erased verification.
 *
 * Deliveries are locked by id, then versions by id, and versions only if they change, which is rare: results of one endpoint do
 * not wait for each other.
 */
const recordStatement = {
  name: "record_webhook_attempts",
  text: `
WITH result AS MATERIALIZED (
  SELECT * FROM unnest(
    $1::uuid[], $2::int[], $3::int[], $4::int[], $5::int[], $6::text[], $7::text[], $8::bool[], $9::float8[]
  ) AS r (verification_id, number, resends, duration_ms, status, error, answer, gone, retry_in_seconds)
),
delivery AS MATERIALIZED (
  SELECT d.verification_id, d.webhook_configuration_id, d.erased, d.failures FROM webhook_delivery d
  WHERE d.verification_id = ANY ($1::uuid[])
  ORDER BY d.verification_id FOR NO KEY UPDATE
),
ended AS MATERIALIZED (
  SELECT r.*, d.webhook_configuration_id, d.erased, d.failures, a.started_at
  FROM result r
  JOIN delivery d ON d.verification_id = r.verification_id
  CROSS JOIN LATERAL (
    SELECT started_at FROM webhook_attempt
    WHERE verification_id = r.verification_id AND number = r.number AND duration_ms IS NULL OFFSET 0
  ) a
),
told AS MATERIALIZED (
  SELECT w.project_id, w.environment, w.url, bool_or(r.error IS NULL) AS succeeded,
    min(r.started_at) FILTER (WHERE r.error IS NOT NULL) AS failed_at,
    max(r.failures + 1) FILTER (WHERE r.error IS NOT NULL) AS most_failures,
    max(r.started_at) FILTER (WHERE r.gone) AS gone_at
  FROM ended r
  CROSS JOIN LATERAL (SELECT * FROM webhook_configuration WHERE id = r.webhook_configuration_id OFFSET 0) w
  GROUP BY w.project_id, w.environment, w.url
),
judged AS MATERIALIZED (
  SELECT w.id, w.failing_since AS failing_before, w.disabled_at AS disabled_before, w.replaced_at AS replaced_before, since.failing,
    first_value(w.id) OVER in_order AS first_id, first_value(w.set_at) OVER in_order AS set_before,
    CASE
      WHEN t.gone_at >= max(greatest(w.created_at, w.set_at)) FILTER (WHERE w.secret = w.secret_before)
        OVER (PARTITION BY w.project_id, w.environment, w.url) THEN '${goneReason}'
      WHEN since.failing <= ${nowMs} - interval '5 days' AND t.most_failures >= ${minFailuresToDisable} THEN '${failingReason}'
    END AS reason
  FROM told t
  CROSS JOIN LATERAL (
    SELECT o.*, lag(o.secret, 1, o.secret) OVER (ORDER BY o.version) AS secret_before FROM webhook_configuration o
    WHERE o.project_id = t.project_id AND o.environment = t.environment AND o.url = t.url OFFSET 0
  ) w
  CROSS JOIN LATERAL (
    SELECT CASE WHEN NOT t.succeeded THEN coalesce(w.failing_since, t.failed_at) END AS failing
  ) since
  WINDOW in_order AS (PARTITION BY w.project_id, w.environment, w.url ORDER BY w.version)
),
to_change AS MATERIALIZED (
  SELECT * FROM judged j
  WHERE j.failing IS DISTINCT FROM j.failing_before OR (j.reason IS NOT NULL AND j.disabled_before IS NULL)
),
changing AS MATERIALIZED (
  SELECT w.id, w.set_at FROM webhook_configuration w
  WHERE w.id = ANY (ARRAY(SELECT unnest(ARRAY[id, first_id]) FROM to_change))
  ORDER BY w.id FOR NO KEY UPDATE
),
changed AS (
  UPDATE webhook_configuration w SET
    failing_since = CASE WHEN w.failing_since IS NOT DISTINCT FROM j.failing_before THEN j.failing ELSE w.failing_since END,
    disabled_at = coalesce(w.disabled_at, CASE WHEN j.reason IS NOT NULL THEN ${nowMs} END),
    disabled_reason = coalesce(w.disabled_reason, j.reason)
  FROM to_change j
  JOIN changing first ON first.id = j.first_id AND first.set_at IS NOT DISTINCT FROM j.set_before
  WHERE w.id = j.id AND w.id = ANY (ARRAY(SELECT id FROM changing))
    AND w.disabled_at IS NOT DISTINCT FROM j.disabled_before
    AND (
      w.failing_since IS NOT DISTINCT FROM j.failing_before
      OR (j.reason = '${goneReason}' AND w.failing_since IS NOT NULL)
    )
  RETURNING w.id, w.disabled_at IS NOT NULL AS disabled, w.disabled_reason, j.disabled_before IS NULL AS worked_before,
    w.replaced_at IS NOT DISTINCT FROM j.replaced_before AS is_up_to_date
),
recorded AS (
  UPDATE webhook_attempt a
  SET duration_ms = r.duration_ms, status = r.status, error = r.error,
    answer = CASE WHEN NOT r.erased THEN r.answer END
  FROM ended r
  WHERE a.verification_id = ANY ($1::uuid[]) AND a.verification_id = r.verification_id AND a.number = r.number
    AND a.duration_ms IS NULL
  RETURNING a.verification_id, a.number
),
verdict AS MATERIALIZED (
  SELECT r.verification_id, r.number, r.resends, r.error IS NOT NULL AS failed, r.retry_in_seconds,
    CASE
      WHEN r.error IS NULL THEN 'delivered'
      WHEN r.retry_in_seconds IS NULL THEN 'failed'
      WHEN coalesce(c.disabled, w.disabled_at IS NOT NULL) THEN 'disabled'
      ELSE 'pending'
    END::webhook_delivery_state AS state
  FROM ended r
  JOIN recorded a ON a.verification_id = r.verification_id AND a.number = r.number
  CROSS JOIN LATERAL (SELECT * FROM webhook_configuration WHERE id = r.webhook_configuration_id OFFSET 0) w
  LEFT JOIN changed c ON c.id = w.id
),
settled AS (
  UPDATE webhook_delivery d SET
    state = CASE WHEN d.state = 'disabled' AND v.state = 'pending' THEN 'disabled' ELSE v.state END,
    failures = d.failures + v.failed::int,
    next_attempt_at = CASE
      WHEN d.state = 'pending' AND v.state = 'pending'
      THEN ${nowMs} + date_trunc('milliseconds', make_interval(secs => v.retry_in_seconds))
    END
  FROM verdict v
  WHERE d.verification_id = ANY ($1::uuid[]) AND d.verification_id = v.verification_id
    AND d.attempts = v.number AND d.resends = v.resends AND d.state IN ('pending', 'disabled')
)
SELECT id::text, disabled_reason FROM changed
WHERE CASE WHEN 1 / is_up_to_date::int = 1 THEN disabled AND worked_before END`,
};

/** The SQLSTATE of `recordStatement` if a version that it changes has been replaced meanwhile: division_by_zero. */
const replacedMeanwhile = /^22012$/;

/** Records results in batches. `onDisabled` is told the ids, UUIDs, of versions that a result has disabled. */
export function createAttemptResults(
  database: Database,
  { onDisabled }: { readonly onDisabled: (webhookId: string, reason: string) => void },
): (result: AttemptResult) => Promise<void> {
  return createBatcher<AttemptResult, undefined>({
    observer: database.observer.batch("record"),
    maxSize: 256,
    // Limited by the number of attempts under way.
    maxWaiting: Number.POSITIVE_INFINITY,
    async run(results) {
      const values = [
        plainArray(results.map(({ verificationId }) => verificationId)),
        plainArray(results.map(({ number }) => number)),
        plainArray(results.map(({ resends }) => resends)),
        plainArray(results.map(({ durationMs }) => durationMs)),
        plainArray(results.map(({ status }) => status)),
        textArray(results.map(({ error }) => error)),
        textArray(results.map(({ answer }) => answer)),
        flagArray(results.map(({ gone }) => gone)),
        plainArray(results.map(({ retryInSeconds }) => retryInSeconds)),
      ];
      let rows: unknown[][] | null = null;
      while (rows === null) rows = await tryStatement(database, recordStatement, values, replacedMeanwhile);
      for (const [id, reason] of rows) onDisabled(id as string, reason as string);
      return results.map(() => undefined);
    },
  });
}
