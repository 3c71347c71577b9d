import {
  answerOf,
  type ChargedCreation,
  columnsOf,
  isFresh,
  type Outcome,
  webhookInForce,
} from "./creation-batch.ts";
import { type Pipeline, tryStatement } from "./database.ts";
import { type BatchCharges, chargedCalls, countCharged, UsageLimitReached, usageOf } from "./usage.ts";
import { epochMs, nowMs } from "./verification-row.ts";

/**
 * The fast path: charges and creates if there is no conflict, as is nearly always the case: every key is new, every code is
 * free, every call is within its limit, every id was made a moment ago. On any conflict the statement fails as a whole, with a
 * unique violation or a division by zero, and has no effect. It takes half the database time of the careful statement
 * (careful-creations.ts), since it looks up, joins and returns nothing per row.
 *
 * Locks tables and rows in the order of the careful statement, but lists the CTEs in reverse: Postgres runs data-modifying CTEs
 * that nothing refers to from the last to the first. A code that is taken thus fails the statement before keys and
 * verifications are written.
 */
const createNewStatement = {
  name: "create_new",
  text: `
WITH ${chargedCalls},
created AS (
  INSERT INTO verification (
    id, project_id, environment, mode, status, expected_phone, client_reference, state, parent_origin, return_url,
    destination, sms_text, created_at, expires_at, webhook_configuration_id
  )
  SELECT r.id, r.project_id, r.environment, r.mode, 'pending', r.expected_phone, r.client_reference, r.state,
    r.parent_origin, r.return_url, r.destination, r.sms_text, ${nowMs},
    ${nowMs} + make_interval(secs => r.validity_seconds), ${webhookInForce}
  FROM unnest(
    $7::uuid[], $3::uuid[], $4::environment[], $8::verification_mode[], $9::text[], $10::text[], $11::text[],
    $12::text[], $13::text[], $14::text[], $17::text[], $20::int[]
  ) AS r (
    id, project_id, environment, mode, expected_phone, client_reference, state, parent_origin, return_url,
    destination, sms_text, validity_seconds
  )
),
keyed AS (
  INSERT INTO idempotency_record
    (project_id, environment, key, request_digest, verification_id, verification_url, created_at)
  SELECT r.project_id, r.environment, r.key, decode(r.request_digest, 'hex'), r.verification_id, r.verification_url, ${nowMs}
  FROM unnest($3::uuid[], $4::environment[], $5::text[], $6::text[], $7::uuid[], $18::text[])
    AS r (project_id, environment, key, request_digest, verification_id, verification_url)
  ORDER BY r.project_id, r.environment, r.key
),
reserved AS (
  INSERT INTO live_code (destination, code, code_format, verification_id, expires_at, expected_phone, window_digest)
  SELECT r.destination, r.code, r.code_format, r.verification_id, ${nowMs} + make_interval(secs => r.validity_seconds),
    r.expected_phone, decode(r.window_digest, 'hex')
  FROM unnest($14::text[], $15::text[], $16::code_format[], $7::uuid[], $20::int[], $9::text[], $19::text[])
    AS r (destination, code, code_format, verification_id, validity_seconds, expected_phone, window_digest)
  ORDER BY r.destination, r.code
)
SELECT ${epochMs(nowMs)}, c.project_id::text, c.calls::float8, c.granted::float8, c.call_limit::float8,
  1 / (coalesce(c.granted, -1) = d.calls)::int,
  (SELECT 1 / (${isFresh("$21::uuid", "$22::uuid")})::int)
FROM (VALUES (0)) AS always
LEFT JOIN unnest($1::uuid[], $2::bigint[]) AS d (project_id, calls) ON true
LEFT JOIN charged c ON c.project_id = d.project_id`,
};

/** The SQLSTATEs of a conflict in `createNewStatement`: unique_violation, division_by_zero. */
const notAllNew = /^(23505|22012)$/;

/** Null if not all could be created: then nothing has happened. */
export async function createOnFastPath(
  pipeline: Pipeline,
  items: readonly ChargedCreation[],
  batchCharges: BatchCharges,
): Promise<Outcome[] | null> {
  const ids = items.map(({ request }) => request.id);
  const values = [
    batchCharges.projects,
    batchCharges.calls,
    ...columnsOf(items),
    ids.reduce((one, other) => (one < other ? one : other)),
    ids.reduce((one, other) => (one > other ? one : other)),
  ];
  const rows = await tryStatement(pipeline, createNewStatement, values, notAllNew);
  if (rows === null) return null;
  const createdAt = rows[0]?.[0] as number;
  const charged = new Map(rows.map((row) => [row[1], row]));
  const usages = items.map(({ chargeTo }, position) => {
    const [, , calls, granted, limit] = charged.get(chargeTo) ?? [];
    return usageOf(batchCharges.ranks[position] ?? 0, calls, granted, limit, null);
  });
  pipeline.observer.charged(countCharged(usages));
  return items.map(({ request }, position): Outcome => {
    const usage = usages[position];
    if (usage instanceof UsageLimitReached) throw new Error("a call was answered without being charged");
    const created = answerOf(request, createdAt, createdAt + request.validitySeconds * 1000);
    return { usage, value: { kind: "created", created } };
  });
}
