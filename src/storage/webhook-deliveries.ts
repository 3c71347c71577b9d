import { newId } from "../core/ids.ts";
import {
  type AttemptResult,
  type Claim,
  type ClaimBounds,
  type DueAttempt,
  type EventType,
  leaseSeconds,
} from "../core/webhook.ts";
import { flagArray, plainArray, textArray } from "./array-literal.ts";
import { createBatcher } from "./batcher.ts";
import { type Database, runStatement, tryStatement } from "./database.ts";
import { epochMs, nowMs, verificationColumns, verificationOf } from "./verification-row.ts";

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

/** How many deliveries of disabled webhooks one claim takes out of the queue. */
const disabledAtOnce = 500;

/**
 * The identity of a version's endpoint: all versions with the same project, environment and URL share it. A digest, since URLs
 * are long.
 */
const endpoint = `encode(sha256(convert_to(w.project_id || ' ' || w.environment || ' ' || w.url, 'UTF8')), 'hex')`;

/** The columns of the index `webhook_delivery_due`. */
const pair = "(d.webhook_configuration_id, d.next_attempt_at)";

/**
 * Claims due deliveries fairly: endpoints with the fewest attempts under way come first, and then the earliest due. An endpoint
 * gets no more than its room. The quick endpoints together, and those not known to be quick together, get no more than their
 * group's share; only an endpoint with nothing under way gets one attempt beyond it. So an endpoint that hangs holds up only
 * itself.
 *
 * Usually nothing is due, and `due_at_all` says so. Otherwise `waiting` walks the index from version to version, with one probe
 * each, and never along the due rows of one version: ten thousand of them cost no more than one. Rows that another process has
 * locked are skipped. A row that was claimed elsewhere between the look and the lock is no longer due; locking it checks that
 * again.
 *
 * Rows are found by arrays and by LATERAL subqueries that OFFSET 0 keeps separate, which leaves the planner little choice: its
 * plan is made once, on tables that may be empty, and with joins that plan scanned them whole (nine seconds at ten thousand
 * rows). A version's rows are requested as a range of pairs, which only one index can answer in order: with the index on the
 * time the scan walked past everything else that was due. A row that this statement has locked is found again by its ctid; if
 * another transaction changed it just before, it is not found, and left to the next claim.
 *
 * The claim also writes the attempt's row, which commits before anything is sent: what was sent is on record, whatever happens
 * to this process.
 */
const claimStatement = {
  name: "claim_webhook_attempts",
  text: `
WITH RECURSIVE bound AS MATERIALIZED (
  SELECT * FROM unnest($1::text[], $2::int[], $3::bool[], $4::int[]) AS b (endpoint, room, slow, under_way)
),
due_at_all AS MATERIALIZED (
  SELECT EXISTS (SELECT FROM webhook_delivery d WHERE d.state = 'pending' AND d.next_attempt_at <= ${nowMs}) AS something
),
waiting (id, next_attempt_at) AS (
  (
    SELECT d.webhook_configuration_id, d.next_attempt_at FROM webhook_delivery d
    WHERE d.state = 'pending' AND (SELECT something FROM due_at_all)
    ORDER BY d.webhook_configuration_id, d.next_attempt_at LIMIT 1
  )
  UNION ALL
  SELECT n.id, n.next_attempt_at
  FROM waiting CROSS JOIN LATERAL (
    SELECT d.webhook_configuration_id AS id, d.next_attempt_at FROM webhook_delivery d
    WHERE d.state = 'pending' AND d.webhook_configuration_id > waiting.id
    ORDER BY d.webhook_configuration_id, d.next_attempt_at LIMIT 1
  ) n
),
version AS MATERIALIZED (
  SELECT w.id, w.disabled_at IS NOT NULL AS disabled, ${endpoint} AS endpoint, waiting.next_attempt_at
  FROM waiting CROSS JOIN LATERAL (SELECT * FROM webhook_configuration WHERE id = waiting.id OFFSET 0) w
  WHERE waiting.next_attempt_at <= ${nowMs} OR w.disabled_at IS NOT NULL
),
open AS (
  SELECT v.id, v.endpoint, own.room, own.under_way, own.slow, lane.size, lane.first,
    row_number() OVER (PARTITION BY own.slow ORDER BY own.under_way, v.next_attempt_at) AS turn,
    count(*) OVER (PARTITION BY own.slow) AS versions
  FROM version v LEFT JOIN bound b ON b.endpoint = v.endpoint
  CROSS JOIN LATERAL (
    SELECT coalesce(b.room, $5::int) AS room, coalesce(b.under_way, 0) AS under_way, coalesce(b.slow, true) AS slow
  ) own
  CROSS JOIN LATERAL (
    SELECT CASE WHEN own.slow THEN $8::int ELSE $7::int END AS size,
      CASE WHEN own.slow THEN $9::int ELSE $6::int END AS first
  ) lane
  WHERE NOT v.disabled AND own.room > 0
),
found AS MATERIALIZED (
  SELECT due.row, due.next_attempt_at, o.slow, o.size, o.first,
    o.under_way + row_number() OVER (PARTITION BY o.endpoint ORDER BY due.next_attempt_at) AS number,
    o.under_way + o.room AS most
  FROM open o CROSS JOIN LATERAL (
    SELECT d.ctid AS row, d.next_attempt_at FROM webhook_delivery d
    WHERE d.state = 'pending' AND ${pair} > (o.id, '-infinity') AND ${pair} <= (o.id, ${nowMs})
    ORDER BY d.webhook_configuration_id, d.next_attempt_at LIMIT least(o.room, greatest(1, o.size / o.versions))
    FOR NO KEY UPDATE SKIP LOCKED
  ) due
  WHERE o.turn <= o.size OR (o.under_way = 0 AND o.turn <= o.first)
),
chosen AS MATERIALIZED (
  SELECT f.row
  FROM (
    SELECT found.*, row_number() OVER (PARTITION BY slow ORDER BY number, next_attempt_at) AS lane_turn
    FROM found WHERE number <= most
  ) f
  WHERE f.lane_turn <= f.size OR (f.number = 1 AND f.lane_turn <= f.first)
  ORDER BY f.number, f.next_attempt_at LIMIT $6::int
),
claimed AS (
  UPDATE webhook_delivery d
  SET attempts = d.attempts + 1, next_attempt_at = ${nowMs} + interval '${leaseSeconds} seconds', claim = $10
  WHERE d.ctid = ANY (ARRAY(SELECT row FROM chosen))
  RETURNING d.verification_id, d.webhook_configuration_id, d.attempts, d.failures, d.resends
),
begun AS (
  INSERT INTO webhook_attempt (verification_id, number, started_at)
  SELECT verification_id, attempts, ${nowMs} FROM claimed
),
held_back AS (
  UPDATE webhook_delivery d SET state = 'disabled', next_attempt_at = NULL
  WHERE d.ctid = ANY (ARRAY(
    SELECT held.row
    FROM version v CROSS JOIN LATERAL (
      SELECT d.ctid AS row FROM webhook_delivery d
      WHERE d.state = 'pending' AND ${pair} > (v.id, '-infinity') AND ${pair} <= (v.id, 'infinity')
      ORDER BY d.webhook_configuration_id, d.next_attempt_at LIMIT ${disabledAtOnce}
      FOR NO KEY UPDATE SKIP LOCKED
    ) held
    WHERE v.disabled LIMIT ${disabledAtOnce}
  ))
  RETURNING d.verification_id
)
SELECT h.rows, c.verification_id::text, c.attempts::int, c.failures::int, c.resends::int, ${endpoint}, w.url,
  (
    SELECT string_agg(encode(o.secret, 'hex'), ',' ORDER BY o.version) FROM webhook_configuration o
    WHERE o.project_id = w.project_id AND o.environment = w.environment AND o.version >= w.version AND o.url = w.url
  ),
  e.type::text, ${epochMs("e.occurred_at")}, ${epochMs(nowMs)}, ${verificationColumns}
FROM (SELECT count(*)::float8 AS rows FROM held_back) h
LEFT JOIN claimed c ON true
LEFT JOIN LATERAL (SELECT * FROM webhook_configuration WHERE id = c.webhook_configuration_id OFFSET 0) w ON true
LEFT JOIN LATERAL (SELECT * FROM event WHERE verification_id = c.verification_id OFFSET 0) e ON true
LEFT JOIN LATERAL (
  SELECT * FROM verification
  WHERE project_id = w.project_id AND environment = w.environment AND id = c.verification_id OFFSET 0
) v ON true`,
};

/**
 * Takes back claims whose result never reached this process: nothing has been sent for them, nor will be. Attempts under way
 * are recognised by their lease; rows that another transaction has locked are left to the next time.
 */
const takeBackStatement = {
  name: "take_back_webhook_claims",
  text: `
WITH lost AS MATERIALIZED (
  SELECT d.ctid AS row, d.verification_id, d.attempts FROM webhook_delivery d
  WHERE d.state = 'pending' AND d.claim = ANY ($1::uuid[])
    AND d.next_attempt_at > ${nowMs} AND d.next_attempt_at <= ${nowMs} + interval '${leaseSeconds} seconds'
  FOR NO KEY UPDATE SKIP LOCKED
),
never_made AS (
  DELETE FROM webhook_attempt WHERE ctid = ANY (ARRAY(
    SELECT a.row FROM lost l CROSS JOIN LATERAL (
      SELECT ctid AS row FROM webhook_attempt WHERE verification_id = l.verification_id AND number = l.attempts OFFSET 0
    ) a
  ))
)
UPDATE webhook_delivery d SET attempts = d.attempts - 1, next_attempt_at = ${nowMs}, claim = NULL
WHERE d.ctid = ANY (ARRAY(SELECT row FROM lost))`,
};

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

export function createWebhookDeliveries(
  database: Database,
  options: {
    /** A version was disabled; its id is a UUID. */
    readonly onDisabled: (webhookId: string, reason: string) => void;
  },
): WebhookDeliveries {
  const record = createBatcher<AttemptResult, undefined>({
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
      for (const [id, reason] of rows) options.onDisabled(id as string, reason as string);
      return results.map(() => undefined);
    },
  });

  /** Claims whose result was lost: by id, the earliest time at which their leases end, by performance.now(). */
  const lostClaims = new Map<string, number>();

  async function revertLostClaims(): Promise<void> {
    const now = performance.now();
    for (const [id, until] of lostClaims) if (until <= now) lostClaims.delete(id);
    if (lostClaims.size === 0) return;
    // A claim may still commit after its result was given up on, so it is kept here until its lease is over.
    await runStatement(database, takeBackStatement, [plainArray([...lostClaims.keys()])]);
  }

  return {
    async claim(bounds) {
      await revertLostClaims();
      const id = newId();
      const until = performance.now() + leaseSeconds * 1_000;
      try {
        const claim = await claimUnder(id, bounds);
        // Another process may have claimed these attempts since: this one was suspended before it could read the answer.
        return performance.now() < until ? claim : { ...claim, attempts: [] };
      } catch (error) {
        lostClaims.set(id, until);
        throw error;
      }
    },

    record,

    async bringForward() {
      for (let since = "-infinity", more = true; more; ) {
        const [row] = await runStatement(database, bringForwardStatement, [since]);
        more = row?.[0] === true;
        since = row?.[1] as string;
      }
    },
  };

  async function claimUnder(
    id: string,
    { limit, quickLimit, slowLimit, slowFirstLimit, perEndpoint, endpoints }: ClaimBounds,
  ): Promise<Claim> {
    const rows = await runStatement(database, claimStatement, [
      plainArray(endpoints.map(({ endpoint }) => endpoint)),
      plainArray(endpoints.map(({ room }) => room)),
      flagArray(endpoints.map(({ slow }) => slow)),
      plainArray(endpoints.map(({ underWay }) => underWay)),
      perEndpoint,
      limit,
      quickLimit,
      slowLimit,
      slowFirstLimit,
      id,
    ]);
    return {
      attempts: rows.map(dueAttemptOf).filter((due) => due !== null),
      heldBack: (rows[0]?.[0] as number | undefined) ?? 0,
    };
  }
}

function dueAttemptOf(row: readonly unknown[]): DueAttempt | null {
  const verification = verificationOf(row, 11);
  if (verification === null) return null;
  return {
    verificationId: row[1] as string,
    number: row[2] as number,
    failures: row[3] as number,
    resends: row[4] as number,
    endpoint: row[5] as string,
    url: row[6] as string,
    secrets: secretsOf(row[7] as string),
    event: { type: row[8] as EventType, occurredAt: row[9] as number, verification },
    startedAt: row[10] as number,
  };
}

/** With more signatures the header would be so long that servers refuse it. */
const maxSecrets = 10;

/**
 * The secret captured at creation, and the newest of the later ones. Versions that changed only something else share a secret.
 */
function secretsOf(joined: string): Buffer[] {
  const [captured = "", ...newer] = new Set(joined.split(","));
  return [captured, ...newer.slice(-(maxSecrets - 1))].map((secret) => Buffer.from(secret, "hex"));
}
