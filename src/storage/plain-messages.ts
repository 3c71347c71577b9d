/**
 * What nearly every message is: one code in its text, which stands for what is pending and waits for its sender, of whom nothing
 * else is known. Such a message verifies, whatever is in its batch, as long as nothing there has to do with it. One statement
 * does it, where others are read first, judged and then stored.
 */

import type { InboundContent, InboundMessage } from "../core/inbound-judgement.ts";
import type { Environment } from "../core/project.ts";
import { plainArray, textArray } from "./array-literal.ts";
import { type Database, tryStatement } from "./database.ts";
import { noticeSent, transitionEffects } from "./transition.ts";

/** Plain, so far as it can be seen without asking the database. */
export interface PlainMessage extends InboundMessage {
  readonly content: InboundContent & { readonly environment: Environment };
}

export function mayBePlain(message: InboundMessage): message is PlainMessage {
  const { content } = message;
  return (
    content !== null && content.environment !== null && content.candidates.length === 1 && !content.webSent
  );
}

export interface PlainlyVerified {
  /** A UUID. */
  readonly verificationId: string;
  /** From its creation on. */
  readonly seconds: number;
}

/**
 * Stores those that are plain with all that comes of them, and leaves the others as if they had not come. It says again what
 * `judge` says of a message of this kind, and nothing of any other. It fails as a whole where a message's id is known, or on the
 * division by zero where somebody else has changed a verification since the snapshot.
 *
 * The clock is read after the snapshot was taken: a verification that it shows must not look younger than now. Rows and tables
 * are locked in the order of those that store what was judged. Each is looked up by itself, for the same reason as there.
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
SELECT (SELECT string_agg(concat_ws(' ', position, id, date_part('epoch', took)), ',') FROM verified), ${noticeSent("verified")},
  1 / ((SELECT count(*) FROM verified) = (SELECT count(*) FROM plain))::int`,
};

/** Refusals of it and of what stores judgements: unique_violation, division_by_zero, deadlock_detected. */
export const changedMeanwhile = /^(23505|22012|40P01)$/;

/**
 * What they have verified, by position. Null where something has changed while they were looked at: then nothing is stored. No
 * two may have an id, a sender or a code in common.
 */
export async function verifyPlain(
  database: Database,
  messages: readonly PlainMessage[],
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
  const told = rows[0]?.[0] as string | null;
  for (const one of told?.split(",") ?? []) {
    const [position, verificationId = "", seconds] = one.split(" ");
    verified[Number(position) - 1] = { verificationId, seconds: Number(seconds) };
  }
  return verified;
}
