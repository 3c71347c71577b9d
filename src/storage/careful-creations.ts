import type { UsageCount } from "../core/usage.ts";
import {
  type CreatedVerification,
  type CreationOutcome,
  type NewVerification,
  noDestination,
} from "../core/verification.ts";
import { plainArray } from "./array-literal.ts";
import { isReleasable } from "./code-occupancy.ts";
import {
  answerOf,
  type ChargedCreation,
  columnsOf,
  isFresh,
  type Outcome,
  type Roles,
  webhookInForce,
} from "./creation-batch.ts";
import { type Pipeline, runStatement } from "./database.ts";
import {
  firstAnswerColumns,
  keyLife,
  liveRecord,
  readFirstAnswers,
  repeated,
} from "./idempotency-records.ts";
import { waitForStandby } from "./standby-wait.ts";
import {
  type BatchCharges,
  chargedCalls,
  countCharged,
  secondsToNextMonth,
  UsageLimitReached,
  usageOf,
} from "./usage.ts";
import { epochMs, isOfNow, nowMs } from "./verification-row.ts";

/**
 * The careful path: charges and creates in one statement, so that neither happens without the other. Tables are locked in the
 * order that every statement keeps: usage, codes, idempotency keys, verifications.
 *
 * `reserved` reserves the codes: a code in use or in quarantine is skipped; one past its quarantine, which the expiry has also
 * looked at, is reused. For an id that is not of now none is reserved: retention goes by ids, and would erase at the wrong time.
 * Nor is one on a number that was chosen long ago and does not serve the environment any more.
 * `keyed` stores the idempotency keys: an expired record is replaced; a live one stays, and its request creates nothing. A request
 * that loses a race for its key sees neither its own insert nor the winner's, so its columns come back null:
 * `readFirstAnswers` then reads the winner's response. The code that the loser reserved stays barred until it ages out, which
 * costs nothing and saves a delete.
 *
 * `known` aggregates the one record of a key: the planner has no statistics of keys, and would expect a two-hundredth of all
 * records for each. With a million records it made each execution prepare a hash table for five million rows, which took longer than
 * all the rest.
 */
const createStatement = {
  name: "create",
  text: `
WITH ${chargedCalls},
request AS MATERIALIZED (
  SELECT r.*, ${nowMs} AS created_at,
    ${nowMs} + make_interval(secs => r.validity_seconds) AS expires_at,
    c.calls, c.granted, c.call_limit, r.rank = 0 OR r.rank <= c.granted AS admitted,
    ${isOfNow("r.verification_id")} AS of_now,
    CASE WHEN r.destination = '${noDestination}' THEN false WHEN ${isFresh("r.verification_id")} THEN true ELSE coalesce((
      SELECT d.environment = r.environment FROM destination_number d
      WHERE d.number = r.destination AND d.removed_at IS NULL
    ), false) END AS in_use
  FROM ROWS FROM (
    generate_series(0, $21::int - 1), unnest(
    $3::uuid[], $4::environment[], $5::text[], $6::text[], $7::uuid[], $8::verification_mode[], $9::text[], $10::text[],
    $11::text[], $12::text[], $13::text[], $14::text[], $15::text[], $16::code_format[], $17::text[], $18::text[],
    $19::text[], $20::int[], $22::uuid[], $23::int[], $24::bool[])
  ) AS r (
    position, project_id, environment, key, request_digest, verification_id, mode, expected_phone, client_reference,
    state, parent_origin, return_url, destination, code, code_format, sms_text, verification_url,
    window_digest, validity_seconds, charge_to, rank, leads
  )
  LEFT JOIN charged c ON c.project_id = r.charge_to
),
known AS MATERIALIZED (
  SELECT r.position, i.request_digest, i.verification_url, i.verification_id
  FROM request r
  CROSS JOIN LATERAL (
    SELECT (array_agg(request_digest))[1] AS request_digest, (array_agg(verification_url))[1] AS verification_url,
      (array_agg(verification_id))[1] AS verification_id
    FROM idempotency_record i
    WHERE r.admitted AND i.project_id = r.project_id AND i.environment = r.environment AND i.key = r.key
      AND ${liveRecord}
    HAVING count(*) > 0
  ) i
),
reserved AS (
  INSERT INTO live_code AS l
    (destination, code, code_format, verification_id, expires_at, expected_phone, window_digest)
  SELECT r.destination, r.code, r.code_format, r.verification_id, r.expires_at, r.expected_phone, decode(r.window_digest, 'hex')
  FROM request r
  WHERE r.admitted AND r.leads AND r.of_now AND r.in_use
    AND NOT EXISTS (SELECT FROM known k WHERE k.position = r.position)
  ORDER BY r.destination, r.code
  ON CONFLICT (destination, code) DO UPDATE SET
    code_format = excluded.code_format, verification_id = excluded.verification_id, expires_at = excluded.expires_at,
    expected_phone = excluded.expected_phone, window_digest = excluded.window_digest
  WHERE ${isReleasable("l")}
  RETURNING l.verification_id
),
keyed AS (
  INSERT INTO idempotency_record AS i
    (project_id, environment, key, request_digest, verification_id, verification_url, created_at)
  SELECT r.project_id, r.environment, r.key, decode(r.request_digest, 'hex'), r.verification_id,
    r.verification_url, r.created_at
  FROM request r JOIN reserved USING (verification_id)
  ORDER BY r.project_id, r.environment, r.key
  ON CONFLICT (project_id, environment, key) DO UPDATE SET
    request_digest = excluded.request_digest, verification_id = excluded.verification_id,
    verification_url = excluded.verification_url, created_at = excluded.created_at
  WHERE i.created_at <= excluded.created_at - ${keyLife}
  RETURNING i.verification_id
),
created AS (
  INSERT INTO verification (
    id, project_id, environment, mode, status, expected_phone, client_reference, state, parent_origin, return_url,
    destination, sms_text, created_at, expires_at, webhook_configuration_id
  )
  SELECT r.verification_id, r.project_id, r.environment, r.mode, 'pending', r.expected_phone, r.client_reference,
    r.state, r.parent_origin, r.return_url, r.destination, r.sms_text, r.created_at, r.expires_at,
    ${webhookInForce}
  FROM request r JOIN keyed USING (verification_id)
  RETURNING id
)
SELECT r.position, r.calls::float8, r.granted::float8, r.call_limit::float8,
  c.id IS NOT NULL, s.verification_id IS NOT NULL, ${epochMs("r.created_at")}, ${epochMs("r.expires_at")},
  CASE WHEN NOT coalesce(r.admitted, false) THEN ${secondsToNextMonth} END, r.of_now, r.in_use,
  ${firstAnswerColumns}
FROM request r
LEFT JOIN created c ON c.id = r.verification_id
LEFT JOIN reserved s ON s.verification_id = r.verification_id
LEFT JOIN known i ON i.position = r.position
LEFT JOIN LATERAL (SELECT * FROM verification v WHERE v.id = i.verification_id OFFSET 0) v ON true`,
};

/** The columns of `createStatement` before those of the first answer. */
type CreationRow = readonly [
  position: number,
  calls: unknown,
  granted: unknown,
  callLimit: unknown,
  isCreated: boolean,
  isReserved: boolean,
  createdAt: number,
  expiresAt: number,
  secondsToNextMonth: unknown,
  isOfNow: boolean,
  isInUse: boolean,
];
const firstAnswerColumn = 11;

export async function createCarefully(
  pipeline: Pipeline,
  items: readonly ChargedCreation[],
  { leaderOf, leads }: Roles,
  batchCharges: BatchCharges,
): Promise<Outcome[]> {
  const rows = await runStatement(pipeline, createStatement, [
    batchCharges.projects,
    batchCharges.calls,
    ...columnsOf(items),
    items.length,
    plainArray(items.map(({ chargeTo }) => chargeTo)),
    plainArray(batchCharges.ranks),
    plainArray(leads),
  ]);
  if (rows.length !== items.length) throw new Error("a creation returned no result");

  const outcomes = new Array<Outcome>(items.length);
  const created = new Map<number, CreatedVerification>();
  const undecided: Undecided[] = [];
  const usages = rows.map((row) => {
    const [position, calls, granted, limit, , , , , seconds] = row as unknown as CreationRow;
    return usageOf(batchCharges.ranks[position] ?? 0, calls, granted, limit, seconds);
  });
  pipeline.observer.charged(countCharged(usages));
  for (const [index, row] of rows.entries()) {
    const [position, , , , isCreated, isReserved, createdAt, expiresAt, , isOfNow, isInUse] =
      row as unknown as CreationRow;
    const { request } = items[position] as ChargedCreation;
    const usage = usages[index];
    if (usage instanceof UsageLimitReached) {
      outcomes[position] = usage;
    } else if (isCreated) {
      const answer = answerOf(request, createdAt, expiresAt);
      created.set(position, answer);
      outcomes[position] = { usage, value: { kind: "created", created: answer } };
    } else if (row[firstAnswerColumn] !== null) {
      outcomes[position] = { usage, value: repeated(request, row, firstAnswerColumn) };
    } else {
      const refused: CreationOutcome = isOfNow
        ? { kind: isInUse ? "code_taken" : "number_removed" }
        : { kind: "id_outdated", now: createdAt };
      undecided.push({ position, request, usage, reserved: isReserved, refused });
    }
  }

  for (const { position, request, usage, refused } of undecided) {
    const leader = leaderOf[position] as number;
    const answer = created.get(leader);
    const same = request.requestDigest === (items[leader] as ChargedCreation).request.requestDigest;
    const asLeader: CreationOutcome = !answer
      ? refused
      : same
        ? { kind: "replayed", created: answer }
        : { kind: "conflict" };
    outcomes[position] = { usage, value: asLeader };
  }
  await answerLost(
    pipeline,
    undecided.filter(({ reserved }) => reserved),
    outcomes,
  );
  const hasWritten = created.size > 0 || countCharged(usages) > 0;
  if (!hasWritten && outcomes.some(isReplayed)) await waitForStandby(pipeline);
  return outcomes;
}

const isReplayed = (outcome: Outcome) =>
  !(outcome instanceof UsageLimitReached) && outcome.value.kind === "replayed";

/** A request that was charged, but neither created nor found by its key. */
interface Undecided {
  readonly position: number;
  readonly request: NewVerification;
  readonly usage: UsageCount | undefined;
  /** Whether its code was reserved: then another process took its key while the statement ran. */
  readonly reserved: boolean;
  /** Why no code was reserved for it, unless it shares its key with a request that has created. */
  readonly refused: CreationOutcome;
}

/** Gives requests that lost their keys the responses of the winners. */
async function answerLost(
  pipeline: Pipeline,
  lost: readonly Undecided[],
  outcomes: Outcome[],
): Promise<void> {
  if (lost.length === 0) return;
  const rows = await readFirstAnswers(
    pipeline,
    lost.map(({ request }) => request),
  );
  for (const row of rows) {
    const { position, request, usage } = lost[(row[0] as number) - 1] as Undecided;
    outcomes[position] = { usage, value: repeated(request, row, 1) };
  }
}
