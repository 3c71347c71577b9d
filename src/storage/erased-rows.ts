/** The parts of statements that erase: on request, or because it is time (retention.ts). */

import { firstUuid } from "../core/ids.ts";
import type { NamedStatement } from "./database.ts";

/** Runs one statement of an erasure. */
export type RunErasing = (statement: NamedStatement, values: readonly unknown[]) => Promise<unknown[][]>;

/**
 * Erases messages, on request or by retention: CTEs over the messages `m` that satisfy `where`, joined with `from`. Rows are
 * locked in key order, so that two erasures of the same rows wait for each other. They are changed where they were locked: to find
 * them by their keys again, Postgres may read all messages if a pooler drops the planner's settings. A row that has moved is not in
 * question any more: only an erasure changes a message, and erases all of it.
 */
export function erasedMessages(parts: {
  readonly from?: string;
  readonly where: string;
  readonly limit?: number;
}) {
  const { from, where, limit } = parts;
  return `
locked_message AS MATERIALIZED (
  SELECT m.ctid AS row FROM inbound_message m${from ? `, ${from}` : ""}
  WHERE ${where} AND (m.sender IS NOT NULL OR m.destination IS NOT NULL OR m.text IS NOT NULL)
  ORDER BY m.source, m.message_id${limit ? ` LIMIT ${limit}` : ""} FOR NO KEY UPDATE OF m
),
erased_message AS (
  UPDATE inbound_message m SET sender = NULL, destination = NULL, text = NULL
  WHERE m.ctid = ANY (ARRAY(SELECT row FROM locked_message))
  RETURNING 1
)`;
}

/** The same for verifications `v`. A pending one keeps its expected phone, which messages are still to be compared with. */
export function erasedVerifications({ where }: { readonly where: string }): string {
  return `
locked_verification AS MATERIALIZED (
  SELECT v.id FROM verification v
  WHERE ${where} AND v.status <> 'pending' AND (v.phone IS NOT NULL OR v.expected_phone IS NOT NULL)
  ORDER BY v.id FOR NO KEY UPDATE OF v
),
erased_verification AS (
  UPDATE verification v SET phone = NULL, expected_phone = NULL
  WHERE v.id = ANY (ARRAY(SELECT id FROM locked_verification))
  RETURNING 1
)`;
}

/**
 * The end of a statement that deletes the senders with these keys, and with them the misses counted against them. `keys` are
 * distinct rows (environment, phone). Rows are locked in key order, as by the statement that counts misses. Each is looked up by
 * itself: a join, and in Postgres 15 also a condition on an array of phones, may be planned as a scan of all senders. The
 * statement returns false if a sender had changed since it began: such a row has moved, and is not found. `forget` repeats it.
 */
export function forgottenSenders({ keys }: { readonly keys: string }): string {
  return `
locked_sender AS MATERIALIZED (
  SELECT s.row FROM (${keys} ORDER BY 1, 2) AS k (environment, phone)
  CROSS JOIN LATERAL (
    SELECT ctid AS row FROM inbound_sender WHERE environment = k.environment AND phone = k.phone FOR UPDATE
  ) s
),
forgotten AS (
  DELETE FROM inbound_sender s WHERE s.ctid = ANY (ARRAY(SELECT row FROM locked_sender)) RETURNING 1
)
SELECT (SELECT count(*) FROM forgotten) = (SELECT count(*) FROM locked_sender)`;
}

/** Ends even if messages of the sender keep arriving: only a few misses change its row, then it is muted. */
export async function forget(
  run: RunErasing,
  statement: NamedStatement,
  values: readonly unknown[],
): Promise<void> {
  for (let done = false; !done; ) {
    const [row] = await run(statement, values);
    done = row?.[0] as boolean;
  }
}

/**
 * The end of a statement that removes the expected phones of the codes that the CTE `found` names by destination and code. They are
 * looked up one by one: the planner has no statistics of phones, and may read all codes instead. A row that has moved is not
 * changed: its code was given out again.
 */
export const forgettingExpectedPhones = `
locked AS MATERIALIZED (
  SELECT l.row FROM (SELECT destination, code FROM found ORDER BY destination, code) k
  CROSS JOIN LATERAL (
    SELECT ctid AS row FROM live_code WHERE destination = k.destination AND code = k.code FOR NO KEY UPDATE
  ) l
),
forgotten AS (
  UPDATE live_code l SET expected_phone = NULL WHERE l.ctid = ANY (ARRAY(SELECT row FROM locked))
)`;

/** How many rows one statement looks at, in some 10 ms; only a few of them are locked. */
export const rowsAtOnce = 5_000;

/**
 * The next batch of codes that expect the phone $1, behind destination $2 and verification $3, with all of the last verification.
 * Skips those whose verification still expects it: its user still needs hints; and those of verification $4. OFFSET 0 keeps the
 * planner from searching all verifications for this one, and the subquery as a limit keeps it from sorting all of the phone's codes:
 * it expects fewer than the limit.
 */
const phoneCodesStatement = {
  name: "erasure_phone_codes",
  text: `
WITH batch AS MATERIALIZED (
  SELECT l.destination, l.verification_id, l.code FROM live_code l
  WHERE l.expected_phone = $1 AND (l.destination, l.verification_id) > ($2, $3::uuid)
  ORDER BY l.destination, l.verification_id FETCH FIRST (SELECT ${rowsAtOnce}) ROWS WITH TIES
),
found AS MATERIALIZED (
  SELECT b.destination, b.code FROM batch b
  WHERE b.verification_id <> $4::uuid
    AND NOT EXISTS (SELECT FROM verification v WHERE v.id = b.verification_id AND v.expected_phone = $1 OFFSET 0)
),${forgettingExpectedPhones}
SELECT b.destination, b.verification_id::text FROM batch b ORDER BY b.destination DESC, b.verification_id DESC LIMIT 1`,
};

/**
 * Removes a phone from the codes whose verification does not expect it any more or does not exist: a request that lost the race for
 * an idempotency key has reserved a code, on any destination. Batch by batch, since a merchant can have any number of
 * verifications that expect one phone. The codes of the verification `kept`, if there is one, are left.
 */
export async function forgetPhoneInCodes(run: RunErasing, phone: string, kept = firstUuid): Promise<void> {
  for (let position: readonly unknown[] | undefined = ["", firstUuid]; position !== undefined; )
    [position] = await run(phoneCodesStatement, [phone, ...position, kept]);
}
