import { newId } from "../core/ids.ts";
import {
  type Claim,
  type ClaimBounds,
  type DueAttempt,
  type EventType,
  leaseSeconds,
} from "../core/webhook.ts";
import { flagArray, plainArray } from "./array-literal.ts";
import { type Database, runStatement } from "./database.ts";
import { epochMs, nowMs, verificationColumns, verificationOf } from "./verification-row.ts";

/** How many deliveries of disabled webhooks one claim takes out of the queue. */
const disabledAtOnce = 500;

/** If no more are due, a claim finds their versions by them. */
const fewDue = 100;

/** This long after a walk a claim walks even if few are due: what disabled webhooks have in the queue for later leaves it then. */
const walkAfterMs = 1_000;

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
 * Usually nothing is due, or so little that `earliest` has it all. Otherwise, and if $11 asks for it, `waiting` walks the index
 * from version to version, with one probe each, and never along the due rows of one version: ten thousand of them cost no more
 * than one. It visits versions of which nothing is due, too, and there may be thousands with something to retry. Rows that another
 * process has locked are skipped. A row that was claimed elsewhere between the look and the lock is no longer due; locking it
 * checks that again.
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
earliest AS MATERIALIZED (
  SELECT d.webhook_configuration_id AS id, d.next_attempt_at FROM webhook_delivery d
  WHERE d.state = 'pending' AND d.next_attempt_at <= ${nowMs} ORDER BY d.next_attempt_at LIMIT ${fewDue + 1}
),
look AS MATERIALIZED (
  SELECT count(*) > CASE WHEN $11::bool THEN 0 ELSE ${fewDue} END AS walks FROM earliest
),
waiting (id, next_attempt_at) AS (
  (
    SELECT d.webhook_configuration_id, d.next_attempt_at FROM webhook_delivery d
    WHERE d.state = 'pending' AND (SELECT walks FROM look)
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
seen AS (
  SELECT id, next_attempt_at FROM waiting
  UNION ALL
  SELECT id, min(next_attempt_at) FROM earliest WHERE NOT (SELECT walks FROM look) GROUP BY id
),
version AS MATERIALIZED (
  SELECT w.id, w.disabled_at IS NOT NULL AS disabled, ${endpoint} AS endpoint, seen.next_attempt_at
  FROM seen CROSS JOIN LATERAL (SELECT * FROM webhook_configuration WHERE id = seen.id OFFSET 0) w
  WHERE seen.next_attempt_at <= ${nowMs} OR w.disabled_at IS NOT NULL
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
  e.type::text, ${epochMs("e.occurred_at")}, ${epochMs(nowMs)}, ${verificationColumns}, (SELECT walks FROM look)
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

/** Claims due deliveries for this process, and takes back its claims whose answers were lost. */
export function createDeliveryClaims(database: Database): (bounds: ClaimBounds) => Promise<Claim> {
  /** Claims whose result was lost: by id, the earliest time at which their leases end, by performance.now(). */
  const lostClaims = new Map<string, number>();
  let walkedAt = Number.NEGATIVE_INFINITY;

  async function revertLostClaims(): Promise<void> {
    const now = performance.now();
    for (const [id, until] of lostClaims) if (until <= now) lostClaims.delete(id);
    if (lostClaims.size === 0) return;
    // A claim may still commit after its result was given up on, so it is kept here until its lease is over.
    await runStatement(database, takeBackStatement, [plainArray([...lostClaims.keys()])]);
  }

  return async (bounds) => {
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
  };

  async function claimUnder(
    id: string,
    { limit, quickLimit, slowLimit, slowFirstLimit, perEndpoint, endpoints }: ClaimBounds,
  ): Promise<Claim> {
    const now = performance.now();
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
      now - walkedAt >= walkAfterMs,
    ]);
    if (rows[0]?.at(-1) === true) walkedAt = now;
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
