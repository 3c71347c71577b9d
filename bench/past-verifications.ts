/**
 * Verifications of the last months in every final status, with what they leave behind: events, and the SMS that verified them
 * or failed to. Inserted in bulk.
 */

import type pg from "pg";
import type { BenchProject } from "./service.ts";
import { insertLike } from "./template.ts";

const chunk = 100_000;
/** Younger than the age at which retention would delete them. */
const spreadDays = 80;

/** Of ten verifications, six are verified, three expired, one cancelled. Each has one SMS, which matched if it was verified. */
const pastText = ({ template }: BenchProject) => `
WITH seed AS MATERIALIZED (
  SELECT n, uuidv7(age) AS id, now() + age AS created_at,
    CASE WHEN n % 2 = 0 THEN 'live' ELSE 'test' END::environment AS environment,
    CASE WHEN n % 2 = 0 THEN $4::text ELSE $5::text END AS destination,
    CASE WHEN n % 10 < 6 THEN 'verified' WHEN n % 10 < 9 THEN 'expired' ELSE 'cancelled' END AS status,
    '010' || lpad((n * 48271 % 100000000)::text, 8, '0') AS phone
  FROM generate_series($1::bigint, $2::bigint - 1) AS n
  CROSS JOIN LATERAL (SELECT -interval '${spreadDays} days' * (1 - n::float8 / $3::float8) - interval '2 days' AS age) a
),
verifications AS (
  ${insertLike(template, "verification", {
    id: "id",
    environment: "environment",
    mode: "'discover'::verification_mode",
    status: "status::verification_status",
    expected_phone: "NULL",
    phone: "CASE status WHEN 'verified' THEN phone END",
    carrier: "CASE status WHEN 'verified' THEN 'SKT'::carrier END",
    destination: "destination",
    client_reference: "'signup-' || n",
    state: "md5(n::text)",
    created_at: "date_trunc('milliseconds', created_at)",
    expires_at: "date_trunc('milliseconds', created_at) + interval '1 hour'",
    verified_at:
      "CASE status WHEN 'verified' THEN date_trunc('milliseconds', created_at) + interval '20 seconds' END",
  })} FROM seed
),
events AS (
  INSERT INTO event (verification_id, type, occurred_at)
  SELECT id, ('verification.' || status)::event_type, date_trunc('milliseconds', created_at) + interval '20 seconds' FROM seed
)
INSERT INTO inbound_message
  (source, message_id, sender, destination, text, carrier, received_at, ingested_at, outcome, verification_id, duplicate)
SELECT 'bench', 'past-' || n, phone, destination, '[Bench] ' || n, 'SKT', created_at, date_trunc('milliseconds', created_at),
  CASE status WHEN 'verified' THEN 'verified' ELSE 'late' END::inbound_message_outcome, id, false
FROM seed`;

/**
 * Advances retention to where it would have been after running all along, seven and another thirty days back: otherwise it
 * would scan all these rows during the measured minutes. None of them is due for retention.
 */
const passedText = `
UPDATE retention_progress SET done_up_to = (now() - make_interval(days => kept.days))::text
FROM (VALUES ('erase_unmatched_messages', 7), ('delete_unmatched_messages', 37)) AS kept (task, days)
WHERE retention_progress.task = kept.task`;

/** Adds the past verifications `from` to `until` (exclusive) of `total`, oldest first, as they would accumulate. */
export async function addPast(
  database: pg.Client,
  project: BenchProject,
  range: { readonly from: number; readonly until: number; readonly total: number },
): Promise<void> {
  const { live, test } = project.numbers;
  for (let from = range.from; from < range.until; from += chunk) {
    const until = Math.min(range.until, from + chunk);
    await database.query(pastText(project), [from, until, range.total, live, test]);
  }
  await database.query(passedText);
  await database.query("VACUUM ANALYZE verification, event, inbound_message");
  await database.query("CHECKPOINT");
}
