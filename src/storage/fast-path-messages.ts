/**
 * The fast path for what nearly every message is ("plain"): its text has one candidate, which is the code of a pending
 * verification that accepts its sender, and nothing else is known of the sender. Such a message verifies, whatever else is in
 * its batch, as long as no other message there shares a key with it. One statement does this, where other messages are read,
 * judged and then stored.
 */

import type { InboundContent, InboundMessage } from "../core/inbound-judgement.ts";
import type { Environment } from "../core/project.ts";
import { plainArray, textArray } from "./array-literal.ts";
import { type Database, tryStatement } from "./database.ts";
import { noticesSent, transitionEffects } from "./transition.ts";

/** A message that looks plain before the database is asked. */
export interface FastPathMessage extends InboundMessage {
  readonly content: InboundContent & { readonly environment: Environment };
}

export function isFastPathCandidate(message: InboundMessage): message is FastPathMessage {
  const { content } = message;
  return (
    content !== null && content.environment !== null && content.candidates.length === 1 && !content.webSent
  );
}

export interface PlainlyVerified {
  /** A UUID. */
  readonly verificationId: string;
  /** From the verification's creation on. */
  readonly seconds: number;
}

/**
 * Stores the messages that are plain, with all effects, and ignores the others. It repeats the rules of `judge` for messages of
 * this kind, and for no other. It fails as a whole if a message's id is already stored or, with the division by zero, if
 * another transaction has changed a verification since the snapshot.
 *
 * The clock is read after the snapshot was taken, so that no verification in the snapshot looks younger than now. Rows and
 * tables are locked in the order of `storeStatement`. Rows are looked up by LATERAL subqueries, for the reason given at
 * `stateStatement`.
 */
const plainStatement = {
  name: "inbound_plain",
  text: `
WITH clock AS MATERIALIZED (SELECT date_trunc('milliseconds', clock_timestamp()) AS now),
plain AS MATERIALIZED (
  SELECT m.*, c.now, v.row, v.id
  FROM clock c
  CROSS JOIN unnest(
    $1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::carrier[], $7::float8[], $8::environment[], $9::text[],
    $10::text[]
  ) WITH ORDINALITY AS m (
    source, message_id, sender, destination, text, carrier, received_at, environment, code, digest, position
  )
  CROSS JOIN LATERAL (
    SELECT verification_id FROM live_code WHERE destination = m.destination AND code = m.code OFFSET 0
  ) l
  CROSS JOIN LATERAL (SELECT ctid AS row, * FROM verification WHERE id = l.verification_id OFFSET 0) v
  WHERE v.environment = m.environment AND v.status = 'pending' AND v.expires_at > c.now
    AND (v.mode <> 'match' OR v.expected_phone = m.sender)
    AND (SELECT true FROM inbound_sender WHERE environment = m.environment AND phone = m.sender) IS NULL
    AND (SELECT true FROM message_fingerprint WHERE digest = decode(m.digest, 'hex')) IS NULL
  ORDER BY v.id
),
verified AS (
  UPDATE verification v SET status = 'verified', phone = n.sender, carrier = n.carrier, verified_at = n.now
  FROM plain n WHERE v.ctid = n.row AND v.id = n.id AND v.status = 'pending'
  RETURNING n.position, v.id, v.webhook_configuration_id, v.verified_at - v.created_at AS took
),${transitionEffects("verified", "(SELECT now FROM clock)")},
stored AS (
  INSERT INTO inbound_message (
    source, message_id, sender, destination, text, carrier, received_at, ingested_at, outcome, verification_id, duplicate
  )
  SELECT source, message_id, sender, destination, text, carrier, to_timestamp(received_at / 1000), now, 'verified', id, false
  FROM plain
  ORDER BY source, message_id
)
SELECT (SELECT string_agg(concat_ws(' ', position, id, date_part('epoch', took)), ',') FROM verified), ${noticesSent("verified")},
  1 / ((SELECT count(*) FROM verified) = (SELECT count(*) FROM plain))::int`,
};

/**
 * The SQLSTATEs of a conflict, in this statement and in the one that stores judgements: unique_violation, division_by_zero,
 * deadlock_detected.
 */
export const changedMeanwhile = /^(23505|22012|40P01)$/;

/**
 * What the messages have verified, by position; undefined for those that are not plain. Null, with nothing stored, if something
 * changed while the statement ran. No two messages may share an id, a sender or a code.
 */
export async function verifyOnFastPath(
  database: Database,
  messages: readonly FastPathMessage[],
): Promise<(PlainlyVerified | undefined)[] | null> {
  const contents = messages.map(({ content }) => content);
  const values = [
    textArray(messages.map(({ source }) => source)),
    textArray(messages.map(({ messageId }) => messageId)),
    plainArray(contents.map(({ from }) => from)),
    textArray(contents.map(({ to }) => to)),
    textArray(contents.map(({ text }) => text)),
    plainArray(contents.map(({ carrier }) => carrier)),
    plainArray(contents.map(({ receivedAtMs }) => receivedAtMs)),
    plainArray(contents.map(({ environment }) => environment)),
    plainArray(contents.map(({ candidates }) => candidates[0] ?? null)),
    plainArray(contents.map(({ fingerprint }) => fingerprint)),
  ];
  const rows = await tryStatement(database, plainStatement, values, changedMeanwhile);
  if (rows === null) return null;
  const verified = new Array<PlainlyVerified | undefined>(messages.length).fill(undefined);
  const packed = rows[0]?.[0] as string | null;
  for (const one of packed?.split(",") ?? []) {
    const [position, verificationId = "", seconds] = one.split(" ");
    verified[Number(position) - 1] = { verificationId, seconds: Number(seconds) };
  }
  return verified;
}
