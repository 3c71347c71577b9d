import type { ErasureStore } from "../core/administration/erasure.ts";
import { firstUuid } from "../core/ids.ts";
import { mayCarry } from "../core/message-text.ts";
import { type CodeFormat, type Environment, environments } from "../core/project.ts";
import { erasedDigestOf } from "../core/request-digest.ts";
import { codesIn, defaultSmsTemplate } from "../core/sms-text.ts";
import type { VerificationMode } from "../core/verification.ts";
import { plainArray, textArray } from "./array-literal.ts";
import { codeQuarantine } from "./code-occupancy.ts";
import { type Database, type NamedStatement, runStatement } from "./database.ts";
import { noticesSent, reportTransitions, transitionCounts, transitionEffects } from "./transition.ts";
import type { InTurn } from "./turns.ts";
import { maxClockSkew, nowMs } from "./verification-row.ts";

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
function forgottenSenders({ keys }: { readonly keys: string }): string {
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

/** How many rows one statement looks at, in some 10 ms; only a few of them are locked. */
const batchSize = 5_000;

const projectStatement = {
  name: "erasure_project",
  text: "SELECT project_id::text FROM verification WHERE id = $1::uuid",
};

/**
 * Ends pending verifications, as their expiry or a cancel would. Left pending, a verification would verify with the number that
 * is to be erased, or could never verify and notify nobody.
 */
const endStatement = {
  name: "erasure_end",
  text: `
WITH locked AS MATERIALIZED (
  SELECT v.id FROM verification v WHERE v.id = ANY ($1::uuid[]) AND v.status = 'pending'
  ORDER BY v.id FOR NO KEY UPDATE
),
expired AS (
  UPDATE verification v SET status = 'expired'
  WHERE v.id = ANY (ARRAY(SELECT id FROM locked)) AND v.status = 'pending' AND v.expires_at <= ${nowMs}
  RETURNING v.id, v.webhook_configuration_id, v.environment
),
cancelled AS (
  UPDATE verification v SET status = 'cancelled'
  WHERE v.id = ANY (ARRAY(SELECT id FROM locked)) AND v.status = 'pending' AND v.expires_at > ${nowMs}
  RETURNING v.id, v.webhook_configuration_id, v.environment
),${transitionEffects("expired")},${transitionEffects("cancelled")}
SELECT coalesce((SELECT array_agg(id::text) FROM cancelled), '{}'), ${transitionCounts("cancelled")}, ${transitionCounts("expired")},
  ${noticesSent("expired")}, ${noticesSent("cancelled")}`,
};

/**
 * Marks deliveries so that no endpoint's response is recorded for them any more. The statement that records results locks the
 * delivery first, and sees the mark in the locked row even if it began earlier.
 */
const markStatement = {
  name: "erasure_mark_deliveries",
  text: `
WITH delivery AS MATERIALIZED (
  SELECT d.verification_id FROM webhook_delivery d WHERE d.verification_id = ANY ($1::uuid[]) AND NOT d.erased
  ORDER BY d.verification_id FOR NO KEY UPDATE
)
UPDATE webhook_delivery d SET erased = true
WHERE d.verification_id = ANY (ARRAY(SELECT verification_id FROM delivery))`,
};

/**
 * A statement of its own, so that it sees what was recorded before the mark. Attempts are changed only under a lock on their
 * delivery.
 */
const answersStatement = {
  name: "erasure_answers",
  text: `
WITH delivery AS MATERIALIZED (
  SELECT d.verification_id FROM webhook_delivery d WHERE d.verification_id = ANY ($1::uuid[])
  ORDER BY d.verification_id FOR NO KEY UPDATE
),
erased AS (
  UPDATE webhook_attempt a SET answer = NULL
  WHERE a.verification_id = ANY (ARRAY(SELECT verification_id FROM delivery)) AND a.answer <> ''
  RETURNING a.answer
)
SELECT count(*)::float8 FROM erased`,
};

const verificationsStatement = {
  name: "erasure_verifications",
  text: `
WITH ${erasedVerifications({ where: "v.id = ANY ($1::uuid[])" })}
SELECT id::text FROM locked_verification`,
};

/**
 * Removes expected phones from codes, which are found by them. The planner has no statistics of phones: in a join it expects each to
 * find a two-hundredth of all codes, and may read all of them instead. So phones and codes are looked up one by one. A row that
 * has moved is not changed: its code was given out again.
 */
function forgettingExpectedPhones({
  phones,
  where,
}: {
  readonly phones: string;
  readonly where: string;
}): string {
  return `
WITH found AS MATERIALIZED (
  SELECT l.destination, l.code, l.verification_id
  FROM (${phones}) AS p (phone)
  CROSS JOIN LATERAL (SELECT * FROM live_code WHERE expected_phone = p.phone OFFSET 0) l
),
locked AS MATERIALIZED (
  SELECT l.row FROM (SELECT destination, code FROM found WHERE ${where} ORDER BY destination, code) k
  CROSS JOIN LATERAL (
    SELECT ctid AS row FROM live_code WHERE destination = k.destination AND code = k.code FOR NO KEY UPDATE
  ) l
)
UPDATE live_code l SET expected_phone = NULL WHERE l.ctid = ANY (ARRAY(SELECT row FROM locked))`;
}

/**
 * A code keeps its expected phone for as long as it is barred, even if no verification was created with it: a request that lost
 * the race for an idempotency key has reserved a code, on any destination. While codes cannot be released, because the expiry is
 * held back, retention may have erased the verification's phone before.
 */
const codesStatement = {
  name: "erasure_codes",
  text: forgettingExpectedPhones({
    phones: `
    SELECT expected_phone FROM verification WHERE id = ANY ($1::uuid[])
    UNION
    SELECT l.expected_phone FROM verification v
    CROSS JOIN LATERAL (
      SELECT * FROM live_code
      WHERE expires_at = v.expires_at AND destination = v.destination AND verification_id = v.id OFFSET 0
    ) l
    WHERE v.id = ANY ($1::uuid[])`,
    where: `found.verification_id = ANY ($1::uuid[])
    OR NOT EXISTS (SELECT FROM verification v WHERE v.id = found.verification_id OFFSET 0)`,
  }),
};

/**
 * The idempotency records of verifications, and the request fields other than the phone. A record has the creation time of its
 * verification.
 */
const recordsStatement = {
  name: "erasure_records",
  text: `
SELECT i.project_id::text, i.environment::text, i.key, v.id::text,
  v.mode::text, v.client_reference, v.state, v.parent_origin, v.return_url
FROM verification v
CROSS JOIN LATERAL (
  SELECT * FROM idempotency_record WHERE created_at = v.created_at AND verification_id = v.id OFFSET 0
) i
WHERE v.id = ANY ($1::uuid[])`,
};

/**
 * Replaces the digests of these records. The key stays used, so that nothing is created with it a second time. Meanwhile a
 * record may have been given to another verification, whose digest stays.
 */
const digestsStatement = {
  name: "erasure_digests",
  text: `
WITH locked AS MATERIALIZED (
  SELECT i.row, r.digest
  FROM (
    SELECT * FROM unnest($1::uuid[], $2::environment[], $3::text[], $4::uuid[], $5::text[])
      AS r (project_id, environment, key, verification_id, digest)
    ORDER BY project_id, environment, key
  ) r
  CROSS JOIN LATERAL (
    SELECT ctid AS row FROM idempotency_record
    WHERE project_id = r.project_id AND environment = r.environment AND key = r.key
      AND verification_id = r.verification_id
    FOR NO KEY UPDATE
  ) i
)
UPDATE idempotency_record i SET request_digest = decode(l.digest, 'hex')
FROM locked l WHERE i.ctid = ANY (ARRAY(SELECT row FROM locked)) AND i.ctid = l.row`,
};

const ownMessagesStatement = {
  name: "erasure_own_messages",
  text: `
WITH ${erasedMessages({ where: "m.verification_id = $1::uuid", limit: batchSize })}
SELECT count(*)::float8 FROM erased_message`,
};

/** The senders with a number that is in the verification or its messages; to be run before those are erased. */
const ownSendersStatement = {
  name: "erasure_own_senders",
  text: `
WITH number AS MATERIALIZED (
  SELECT v.phone FROM verification v WHERE v.id = $1::uuid
  UNION
  SELECT v.expected_phone FROM verification v WHERE v.id = $1::uuid
  UNION
  SELECT m.sender FROM inbound_message m WHERE m.verification_id = $1::uuid
),${forgottenSenders({
    keys: "SELECT (SELECT v.environment FROM verification v WHERE v.id = $1::uuid), phone FROM number",
  })}`,
};

/**
 * On which destination the code belonged to this verification, and for how long: until it may be reused. If the clock was set
 * back, as by a standby that takes over, messages that came after its creation have earlier times. Also the code itself, as
 * long as it is barred, and what is needed to find it in the SMS text after that.
 */
const codeStatement = {
  name: "erasure_code",
  text: `
SELECT v.destination, v.environment::text, (v.created_at - ${maxClockSkew})::text,
  (v.expires_at + ${codeQuarantine})::text, l.code, v.sms_text, p.sms_template, p.name, p.code_format::text
FROM verification v
JOIN project p ON p.id = v.project_id
LEFT JOIN live_code l
  ON l.expires_at = v.expires_at AND l.destination = v.destination AND l.verification_id = v.id
WHERE v.id = $1::uuid`,
};

/**
 * The next batch of messages in order of arrival, up to $2, with all of the last instant; of these, those to destination $3.
 */
const destinationPassStatement = {
  name: "erasure_destination_pass",
  text: `
WITH bound AS MATERIALIZED (
  SELECT max(ingested_at) AS upto FROM (
    SELECT m.ingested_at FROM inbound_message m
    WHERE m.ingested_at > $1::timestamptz AND m.ingested_at <= $2::timestamptz
    ORDER BY m.ingested_at LIMIT ${batchSize}
  ) batch
)
SELECT bound.upto::text, m.source, m.message_id, m.text
FROM bound LEFT JOIN LATERAL (
  SELECT * FROM inbound_message m
  WHERE m.ingested_at > $1::timestamptz AND m.ingested_at <= bound.upto AND m.destination = $3 AND m.text IS NOT NULL
  OFFSET 0
) m ON true`,
};

const sendersOfStatement = {
  name: "erasure_senders_of",
  text: `
WITH ${forgottenSenders({
    keys: `
    SELECT DISTINCT $3::environment, m.sender FROM unnest($1::text[], $2::text[]) AS k (source, message_id)
    CROSS JOIN LATERAL (
      SELECT sender FROM inbound_message WHERE source = k.source AND message_id = k.message_id OFFSET 0
    ) m`,
  })}`,
};

const messagesStatement = {
  name: "erasure_messages",
  text: `
WITH ${erasedMessages({
    from: "unnest($1::text[], $2::text[]) AS k (source, message_id)",
    where: "m.source = k.source AND m.message_id = k.message_id",
  })}
SELECT count(*)::float8 FROM erased_message`,
};

const senderStatement = {
  name: "erasure_sender",
  text: `
WITH ${forgottenSenders({ keys: "SELECT e, $1::text FROM unnest(enum_range(NULL::environment)) AS e" })}`,
};

/**
 * Skips codes whose verification still expects the phone: it was created during the erasure, and its user still needs hints.
 * OFFSET 0 keeps the planner from searching all verifications for this one.
 */
const phoneCodesStatement = {
  name: "erasure_phone_codes",
  text: forgettingExpectedPhones({
    phones: "SELECT $1",
    where:
      "NOT EXISTS (SELECT FROM verification v WHERE v.id = found.verification_id AND v.expected_phone = $1 OFFSET 0)",
  }),
};

/** Where the passes end. Later rows were written after the erasure began, which would otherwise never end. */
const endsStatement = {
  name: "erasure_ends",
  text: `
SELECT (SELECT id FROM verification ORDER BY id DESC LIMIT 1)::text,
  (SELECT max(ingested_at) FROM inbound_message)::text,
  (SELECT verification_id FROM webhook_delivery ORDER BY verification_id DESC LIMIT 1)::text`,
};

/** The next batch of verifications in id order, up to $3, and which of them contain the phone. */
const verificationPassStatement = {
  name: "erasure_verification_pass",
  text: `
WITH batch AS MATERIALIZED (
  SELECT v.id, v.phone = $1 OR v.expected_phone = $1 AS concerned
  FROM verification v WHERE v.id > $2::uuid ORDER BY v.id LIMIT ${batchSize}
)
SELECT (array_agg(id ORDER BY id DESC))[1]::text, coalesce(array_agg(id::text) FILTER (WHERE concerned), '{}')
FROM batch WHERE id <= $3::uuid`,
};

/**
 * The next batch of messages in order of arrival, up to $4, with all of the last instant. A number in a text is found by its
 * digits, whatever separates them and whatever it begins with: 010-1234-5678, +82 (10) 1234 5678, full width too. A source that
 * confuses the two ends of a message has a person's number as its destination; a receiving number is nobody's.
 */
const messagePassStatement = {
  name: "erasure_message_pass",
  text: `
WITH bound AS MATERIALIZED (
  SELECT max(ingested_at) AS upto FROM (
    SELECT m.ingested_at FROM inbound_message m WHERE m.ingested_at > $2::timestamptz
    ORDER BY m.ingested_at LIMIT ${batchSize}
  ) batch WHERE ingested_at <= $4::timestamptz
),
${erasedMessages({
  from: "bound",
  where: `m.ingested_at > $2::timestamptz AND m.ingested_at <= bound.upto
    AND (m.sender = $1 OR ${carriesDigits("m.text", "$3")} OR m.destination = $1 AND m.verification_id IS NULL
      AND NOT EXISTS (SELECT FROM destination_number WHERE number = $1 AND removed_at IS NULL))`,
})}
SELECT upto::text, (SELECT count(*)::float8 FROM erased_message) FROM bound`,
};

/**
 * The next batch of deliveries in id order, up to $3: an endpoint's response to any of them may contain the number. A batch is
 * bounded by the attempts: of deliveries that failed for days, or were resent, each may have dozens of a KiB, and five thousand
 * of those took longer than a statement may.
 */
const answerPassStatement = {
  name: "erasure_answer_pass",
  text: `
WITH batch AS MATERIALIZED (
  SELECT DISTINCT verification_id FROM (
    SELECT a.verification_id FROM webhook_attempt a
    WHERE a.verification_id > $1::uuid ORDER BY a.verification_id, a.number LIMIT ${batchSize}
  ) a
),
passed AS MATERIALIZED (
  SELECT verification_id FROM batch WHERE verification_id <= $3::uuid
),
concerned AS MATERIALIZED (
  SELECT DISTINCT a.verification_id FROM webhook_attempt a
  WHERE a.verification_id = ANY (ARRAY(SELECT verification_id FROM passed)) AND ${carriesDigits("a.answer", "$2")}
),
delivery AS MATERIALIZED (
  SELECT d.verification_id FROM webhook_delivery d
  WHERE d.verification_id = ANY (ARRAY(SELECT verification_id FROM concerned))
  ORDER BY d.verification_id FOR NO KEY UPDATE
),
erased AS (
  UPDATE webhook_attempt a SET answer = NULL
  WHERE a.verification_id = ANY (ARRAY(SELECT verification_id FROM delivery)) AND ${carriesDigits("a.answer", "$2")}
  RETURNING 1
)
SELECT (array_agg(verification_id ORDER BY verification_id DESC))[1]::text, (SELECT count(*)::float8 FROM erased)
FROM passed`,
};

/**
 * A phone is found by passing over all verifications, messages and deliveries in the order of an existing index, one batch per
 * statement. An index on the sender would make this a look-up, but would cost every message: its entries are inserted at random
 * places, where those of time and verification are appended at the right end. At two million messages storing one took 12 to 16
 * µs, with that index 17 to 43, and twice the WAL. The pass goes through some 200,000 messages a second, and erasures are rare.
 */
export function createErasureStore(database: Database, inTurn: InTurn): ErasureStore {
  const run = (statement: NamedStatement, values: readonly unknown[]) =>
    inTurn(() => runStatement(database, statement, values));

  /** Returns the ids of those that were cancelled, not expired. */
  async function end(ids: readonly string[]): Promise<string[]> {
    const [row] = await run(endStatement, [plainArray(ids)]);
    const [cancelled, ...moved] = row as [string[], ...number[]];
    reportTransitions(database.observer, "cancelled", moved);
    reportTransitions(database.observer, "expired", moved.slice(environments.length));
    return cancelled;
  }

  /** Ends even if messages of the sender keep arriving: only a few misses change its row, then it is muted. */
  async function forget(statement: NamedStatement, values: readonly unknown[]): Promise<void> {
    for (let done = false; !done; ) {
      const [row] = await run(statement, values);
      done = row?.[0] as boolean;
    }
  }

  async function eraseNumbers(ids: readonly string[], cancelled: readonly string[]) {
    const values = [plainArray(ids)];
    // The verifications are erased last: an erasure that was interrupted finds everything by them when it is repeated.
    await run(markStatement, values);
    const [answers] = await run(answersStatement, values);
    await run(codesStatement, values);
    await eraseDigests(values);
    const erased = (await run(verificationsStatement, values)).map(([id]) => id as string);
    return {
      verifications: new Set([...cancelled, ...erased]).size,
      cancelled: cancelled.length,
      webhookAnswers: answers?.[0] as number,
    };
  }

  /** Replaces the digests of creations, which a phone could be computed from. */
  async function eraseDigests(values: readonly unknown[]): Promise<void> {
    const records = await run(recordsStatement, values);
    const digests = records.map((record) => {
      const [mode, clientReference, state, parentOrigin, returnUrl] = record.slice(4) as [
        VerificationMode,
        ...[string, string],
        ...[string | null, string | null],
      ];
      return erasedDigestOf({ mode, clientReference, state, parentOrigin, returnUrl });
    });
    if (records.length === 0) return;
    const column = (index: number) => records.map((record) => record[index] as string);
    await run(digestsStatement, [
      plainArray(column(0)),
      plainArray(column(1)),
      textArray(column(2)),
      plainArray(column(3)),
      plainArray(digests),
    ]);
  }

  /**
   * Erases messages that carried the verification's code but do not refer to it: they held several codes, came from the web, or
   * their sender was muted. Returns how many.
   */
  async function eraseMessagesWithCode(verificationId: string): Promise<number> {
    const [place] = await run(codeStatement, [verificationId]);
    if (place === undefined) return 0;
    const [destination, environment, createdAt, until, code, smsText, template, projectName, codeFormat] =
      place as [
        string,
        Environment,
        string,
        string,
        string | null,
        string,
        string | null,
        string,
        CodeFormat,
      ];
    const settings = { template: template ?? defaultSmsTemplate, projectName, codeFormat };
    const codes = code === null ? codesIn(smsText, settings) : [code];
    let messages = 0;
    for (let since: string | null = createdAt; ; ) {
      const rows = await run(destinationPassStatement, [since, until, destination]);
      since = (rows[0]?.[0] ?? null) as string | null;
      if (since === null) return messages;
      const carriers = rows.filter(([, , , text]) => text !== null && mayCarry(text as string, codes));
      if (carriers.length === 0) continue;
      const keys = [1, 2].map((column) => textArray(carriers.map((row) => row[column] as string)));
      await forget(sendersOfStatement, [...keys, environment]);
      const [erased] = await run(messagesStatement, keys);
      messages += erased?.[0] as number;
    }
  }

  /**
   * Runs a statement for one batch after the other, from the position `first`. A row is the new position and the value to
   * yield.
   */
  async function* passes(statement: NamedStatement, first: string, valuesOf: (since: string) => unknown[]) {
    for (let since: unknown = first; ; ) {
      const [row] = await run(statement, valuesOf(since as string));
      since = row?.[0] ?? null;
      if (since === null) return;
      yield row?.[1];
    }
  }

  return {
    async projectOf(verificationId) {
      const [row] = await run(projectStatement, [verificationId]);
      return row ? (row[0] as string) : null;
    },

    async eraseVerification(verificationId) {
      const cancelled = await end([verificationId]);
      await forget(ownSendersStatement, [verificationId]);
      let messages = 0;
      for (let more = true; more; ) {
        const [row] = await run(ownMessagesStatement, [verificationId]);
        const batch = row?.[0] as number;
        messages += batch;
        more = batch === batchSize;
      }
      const erased = await eraseNumbers([verificationId], cancelled);
      // Last, since it passes over a day of everybody's messages.
      messages += await eraseMessagesWithCode(verificationId);
      return { ...erased, messages };
    },

    async *erasePhone(phone) {
      const number = patternOf(phone);
      const [ends] = await run(endsStatement, []);
      const [lastVerification, lastMessage, lastDelivery] = ends as (string | null)[];
      await forget(senderStatement, [phone]);
      for await (const ids of passes(verificationPassStatement, firstUuid, (since) => [
        phone,
        since,
        lastVerification,
      ])) {
        const concerned = ids as string[];
        const erased = concerned.length > 0 && (await eraseNumbers(concerned, await end(concerned)));
        yield { ...(erased || noVerifications), messages: 0 };
      }
      for await (const messages of passes(messagePassStatement, "-infinity", (since) => [
        phone,
        since,
        number,
        lastMessage,
      ])) {
        yield { ...noVerifications, messages: messages as number };
      }
      for await (const answers of passes(answerPassStatement, firstUuid, (since) => [
        since,
        number,
        lastDelivery,
      ])) {
        yield { ...noVerifications, messages: 0, webhookAnswers: answers as number };
      }
      await run(phoneCodesStatement, [phone]);
    },
  };
}

const noVerifications = { verifications: 0, cancelled: 0, webhookAnswers: 0 };

/**
 * Whether the digits of a text match the pattern, whatever separates them: also characters encoded for a URL, such as %20, which
 * have digits of their own. Two adjacent numbers may look like a third: erasing too much is the safe side.
 */
function carriesDigits(text: string, pattern: string): string {
  const without = (separators: string) =>
    `regexp_replace(normalize(${text}, NFKC), '${separators}', '', 'g') LIKE ${pattern}`;
  // The percent signs are all that NFKC turns into one.
  const escapes = `${text} ~ '[%\\uFF05\\uFE6A]'`;
  return `(${without("[^0-9]+")} OR ${escapes} AND ${without("(%[0-9A-Fa-f]{2}|[^0-9])+")})`;
}

/** Without the leading 0, since in international form the number begins with 10. */
function patternOf(phone: string): string {
  return `%${phone.slice(1)}%`;
}
