import type { Erasure } from "../core/administration/erasure.ts";
import { firstUuid } from "../core/ids.ts";
import type { NamedStatement } from "./database.ts";
import {
  erasedMessages,
  forget,
  forgetPhoneInCodes,
  forgottenSenders,
  type RunErasing,
  rowsAtOnce,
} from "./erased-rows.ts";
import type { ErasedNumbers, VerificationErasure } from "./verification-erasure.ts";

/**
 * A phone is found by passing over all verifications, messages and deliveries in the order of an existing index, one batch per
 * statement. An index on the sender would make this a look-up, but would cost every message: its entries are inserted at random
 * places, where those of time and verification are appended at the right end. At two million messages storing one took 12 to 16
 * µs, with that index 17 to 43, and twice the WAL. The pass goes through some 200,000 messages a second, and erasures are rare.
 */
export function createPhoneErasure(
  run: RunErasing,
  verifications: VerificationErasure,
): (phone: string) => AsyncIterable<Erasure> {
  return async function* (phone) {
    const number = patternOf(phone);
    const [ends] = await run(endsStatement, []);
    const [lastVerification, lastMessage, lastDelivery] = ends as (string | null)[];
    await forget(run, senderStatement, [phone]);
    for await (const ids of passes(run, verificationPassStatement, firstUuid, (since) => [
      phone,
      since,
      lastVerification,
    ])) {
      const concerned = ids as string[];
      const erased = concerned.length > 0 ? await verifications.eraseNumbers(concerned) : nothing;
      yield { ...erased, messages: 0 };
    }
    for await (const messages of passes(run, messagePassStatement, "-infinity", (since) => [
      phone,
      since,
      number,
      lastMessage,
    ])) {
      yield { ...nothing, messages: messages as number };
    }
    for await (const answers of passes(run, answerPassStatement, firstUuid, (since) => [
      since,
      number,
      lastDelivery,
    ])) {
      yield { ...nothing, messages: 0, webhookAnswers: answers as number };
    }
    await forgetPhoneInCodes(run, phone);
  };
}

/**
 * Runs a statement for one batch after the other, from the position `first`. A row is the new position and the value to
 * yield.
 */
async function* passes(
  run: RunErasing,
  statement: NamedStatement,
  first: string,
  valuesOf: (since: string) => unknown[],
) {
  for (let since: unknown = first; ; ) {
    const [row] = await run(statement, valuesOf(since as string));
    since = row?.[0] ?? null;
    if (since === null) return;
    yield row?.[1];
  }
}

const nothing: ErasedNumbers = { verifications: 0, cancelled: 0, webhookAnswers: 0 };

const senderStatement = {
  name: "erasure_sender",
  text: `
WITH ${forgottenSenders({ keys: "SELECT e, $1::text FROM unnest(enum_range(NULL::environment)) AS e" })}`,
};

/**
 * Digits, percent signs and hexadecimal letters, and all that NFKC turns into a digit or a percent sign. Nothing else is normalised:
 * Postgres sorts combining marks in time quadratic in their number, and a few hundred texts of nothing else would keep every erasure
 * from ending.
 */
const relevantCharacters = [
  "0-9A-Fa-f%",
  String.raw`\u00B2\u00B3\u00B9\u00BC-\u00BE\u2070\u2074-\u2079\u2080-\u2089\u2150-\u215F\u2189\u2460-\u249B\u24EA`,
  String.raw`\u3251-\u325F\u32B1-\u32CB\u3358-\u3370\u3378-\u3379\u339F-\u33A6\u33A8\u33AF\u33E0-\u33FE`,
  String.raw`\uFE6A\uFF05\uFF10-\uFF19\uFF21-\uFF26\uFF41-\uFF46`,
  String.raw`\U0001CCF0-\U0001CCF9\U0001D7CE-\U0001D7FF\U0001F100-\U0001F10A\U0001FBF0-\U0001FBF9`,
].join("");

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
  FROM verification v WHERE v.id > $2::uuid ORDER BY v.id LIMIT ${rowsAtOnce}
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
    ORDER BY m.ingested_at LIMIT ${rowsAtOnce}
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
    WHERE a.verification_id > $1::uuid ORDER BY a.verification_id, a.number LIMIT ${rowsAtOnce}
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
 * Whether the digits of a text match the pattern, whatever separates them: also characters encoded for a URL, such as %20, which
 * have digits of their own. Two adjacent numbers may look like a third: erasing too much is the safe side.
 */
function carriesDigits(text: string, pattern: string): string {
  const normal = `normalize(regexp_replace(${text}, '[^${relevantCharacters}]+', ' ', 'g'), NFKC)`;
  const without = (separators: string) =>
    `regexp_replace(${normal}, '${separators}', '', 'g') LIKE ${pattern}`;
  // The percent signs are all that NFKC turns into one.
  const escapes = `${text} ~ '[%\\uFF05\\uFE6A]'`;
  return `(${without("[^0-9]+")} OR ${escapes} AND ${without("(%[0-9A-Fa-f]{2}|[^0-9])+")})`;
}

/** Without the leading 0, since in international form the number begins with 10. */
function patternOf(phone: string): string {
  return `%${phone.slice(1)}%`;
}
