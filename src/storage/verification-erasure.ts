import type { Erasure } from "../core/administration/erasure.ts";
import { mayCarry } from "../core/message-text.ts";
import { type CodeFormat, type Environment, environments } from "../core/project.ts";
import { erasedDigestOf } from "../core/request-digest.ts";
import { codesIn, defaultSmsTemplate } from "../core/sms-text.ts";
import type { VerificationMode } from "../core/verification.ts";
import { plainArray, textArray } from "./array-literal.ts";
import { codeQuarantine } from "./code-occupancy.ts";
import {
  erasedMessages,
  erasedVerifications,
  forget,
  forgetPhoneInCodes,
  forgettingExpectedPhones,
  forgottenSenders,
  type RunErasing,
  rowsAtOnce,
} from "./erased-rows.ts";
import type { StorageObserver } from "./observer.ts";
import { noticesSent, reportTransitions, transitionCounts, transitionEffects } from "./transition.ts";
import { maxClockSkew, nowMs } from "./verification-row.ts";

/** What was erased besides messages. */
export type ErasedNumbers = Omit<Erasure, "messages">;

export interface VerificationErasure {
  /** Erases a verification's numbers and its messages. */
  erase(verificationId: string): Promise<Erasure>;
  /** Erases the numbers of verifications, but leaves their messages, and codes that belong to no verification. */
  eraseNumbers(verificationIds: readonly string[]): Promise<ErasedNumbers>;
}

/** Verifications that are pending are ended first. */
export function createVerificationErasure(run: RunErasing, observer: StorageObserver): VerificationErasure {
  async function erase(verificationId: string): Promise<Erasure> {
    const cancelled = await end([verificationId]);
    await forget(run, ownSendersStatement, [verificationId]);
    let messages = 0;
    for (let more = true; more; ) {
      const [row] = await run(ownMessagesStatement, [verificationId]);
      const batch = row?.[0] as number;
      messages += batch;
      more = batch === rowsAtOnce;
    }
    // Before the verification and its own codes: an erasure that was interrupted finds the phone by them when it is repeated.
    for (const [phone] of await run(expectedPhonesStatement, [plainArray([verificationId])]))
      await forgetPhoneInCodes(run, phone as string, verificationId);
    const erased = await eraseNumbersOf([verificationId], cancelled);
    // Last, since it passes over a day of everybody's messages.
    messages += await eraseMessagesWithCode(verificationId);
    return { ...erased, messages };
  }

  /** Returns the ids of those that were cancelled, not expired. */
  async function end(ids: readonly string[]): Promise<string[]> {
    const [row] = await run(endStatement, [plainArray(ids)]);
    const [cancelled, ...moved] = row as [string[], ...number[]];
    reportTransitions(observer, "cancelled", moved);
    reportTransitions(observer, "expired", moved.slice(environments.length));
    return cancelled;
  }

  /** Of verifications that are over by now; `cancelled` are those that `end` has cancelled. */
  async function eraseNumbersOf(
    ids: readonly string[],
    cancelled: readonly string[],
  ): Promise<ErasedNumbers> {
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
      await forget(run, sendersOfStatement, [...keys, environment]);
      const [erased] = await run(messagesStatement, keys);
      messages += erased?.[0] as number;
    }
  }

  return {
    erase,
    async eraseNumbers(ids) {
      return eraseNumbersOf(ids, await end(ids));
    },
  };
}

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
 * The codes of these verifications, by their phones; for those whose phone retention has erased, by their expiry. That happens while
 * codes cannot be released because the expiry is held back: a code keeps its expected phone for as long as it is barred. By nothing
 * but their expiry: until the table is analyzed, Postgres would also read all codes of the destination, for each verification.
 */
const foundCodes = `
found AS MATERIALIZED (
  SELECT l.destination, l.code, l.expected_phone FROM verification v
  CROSS JOIN LATERAL (
    SELECT * FROM live_code
    WHERE expected_phone = v.expected_phone AND destination = v.destination AND verification_id = v.id OFFSET 0
  ) l
  WHERE v.id = ANY ($1::uuid[])
  UNION
  SELECT l.destination, l.code, l.expected_phone FROM verification v
  CROSS JOIN LATERAL (
    SELECT * FROM live_code WHERE v.expected_phone IS NULL AND expires_at = v.expires_at OFFSET 0
  ) l
  WHERE v.id = ANY ($1::uuid[]) AND l.verification_id = v.id AND l.expected_phone IS NOT NULL
)`;

const codesStatement = {
  name: "erasure_codes",
  text: `
WITH ${foundCodes},${forgettingExpectedPhones}
SELECT count(*) FROM locked`,
};

/** The phones that a verification or its code expects. */
const expectedPhonesStatement = {
  name: "erasure_expected_phones",
  text: `
WITH ${foundCodes}
SELECT expected_phone FROM found
UNION
SELECT expected_phone FROM verification WHERE id = ANY ($1::uuid[]) AND expected_phone IS NOT NULL`,
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
WITH ${erasedMessages({ where: "m.verification_id = $1::uuid", limit: rowsAtOnce })}
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
    ORDER BY m.ingested_at LIMIT ${rowsAtOnce}
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
