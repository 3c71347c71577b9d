/** Reads the state that inbound messages may affect, in one snapshot. */

import {
  type Answered,
  type CodeHolder,
  codeKey,
  duplicateWindowMs,
  type FingerprintedContent,
  fingerprintOf,
  type InboundMessage,
  type InboundOutcome,
  type InboundState,
  type Judgement,
  messageKey,
  type Sender,
  senderKey,
} from "../core/inbound-judgement.ts";
import type { Environment } from "../core/project.ts";
import type { VerificationMode, VerificationStatus } from "../core/verification.ts";
import { flagArray, plainArray, textArray } from "./array-literal.ts";
import { runStatement, type Statements } from "./database.ts";
import { epochMs } from "./verification-row.ts";

/** `rowOf`: the ctid of each verification's row, so that the update need not look the row up again. */
export type ReadState = InboundState & { readonly rowOf: ReadonlyMap<string, string> };

const duplicateWindow = `interval '${duplicateWindowMs} milliseconds'`;

/**
 * Whether the outcome for a message's content, known since the time `since`, is still remembered at the time `at`. What is ahead
 * by as much was stored while the database's clock was wrong.
 */
export function isRemembered(since: string, at: string): string {
  return `${since} > ${at} - ${duplicateWindow} AND ${since} <= ${at} + ${duplicateWindow}`;
}

/**
 * Reads what the messages may affect: the verifications whose codes are among their candidates, the senders with misses, and
 * the judgements of known message ids and contents. A content that is no longer remembered is ignored. The judgement of a
 * content is in its fingerprint, unless the message verified: its repeat carries the code, and so finds the verification and
 * its message. The destination of an erased message is that of the verification which its receipt named, if any. The clock is
 * read after the snapshot was taken, so that no verification in the snapshot looks younger than now. Each row is looked up by
 * a LATERAL or scalar subquery: joins that were planned while the tables were small would read them whole once they have grown.
 */
const stateStatement = {
  name: "inbound_state",
  text: `
WITH held AS MATERIALIZED (
  SELECT k.position, k.is_shared, v.row, v.id, v.environment, v.status, v.mode, v.expected_phone, v.expires_at, v.verified_at
  FROM unnest($1::text[], $2::text[], $8::bool[]) WITH ORDINALITY AS k (destination, code, is_shared, position)
  CROSS JOIN LATERAL (SELECT * FROM live_code WHERE destination = k.destination AND code = k.code OFFSET 0) l
  CROSS JOIN LATERAL (SELECT ctid AS row, * FROM verification WHERE id = l.verification_id OFFSET 0) v
)
SELECT 'clock', NULL::text, NULL::text, NULL::text, NULL::text, NULL::text, NULL::text, NULL::text,
  ${epochMs("date_trunc('milliseconds', clock_timestamp())")}, NULL::bool
UNION ALL
SELECT 'code', position::text, row::text, id::text, status::text, mode::text, expected_phone, environment::text,
  ${epochMs("expires_at")}, NULL
FROM held
UNION ALL
SELECT 'text', h.id::text, v.sms_text, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM held h
CROSS JOIN LATERAL (SELECT sms_text FROM verification WHERE id = h.id OFFSET 0) v
WHERE h.status <> 'pending' OR h.expires_at <= clock_timestamp() OR h.is_shared
UNION ALL
SELECT 'verifying', m.sender, m.destination, h.id::text, h.environment::text, m.text, NULL, NULL, NULL, NULL
FROM held h
CROSS JOIN LATERAL (
  SELECT * FROM inbound_message WHERE verification_id = h.id AND outcome = 'verified' AND NOT duplicate LIMIT 1
) m
WHERE h.status = 'verified' AND ${isRemembered("h.verified_at", "clock_timestamp()")} AND m.text IS NOT NULL
UNION ALL
SELECT 'sender', n.environment::text, n.phone, array_to_string(ARRAY(SELECT ${epochMs("t")} FROM unnest(s.miss_times) AS t), ','),
  NULL, NULL, NULL, NULL, ${epochMs("s.muted_until")}, NULL
FROM unnest($3::environment[], $4::text[]) AS n (environment, phone)
CROSS JOIN LATERAL (SELECT * FROM inbound_sender WHERE environment = n.environment AND phone = n.phone OFFSET 0) s
UNION ALL
SELECT 'message', m.source, m.message_id, m.verification_id::text, m.outcome::text, NULL,
  coalesce(m.destination, (SELECT destination FROM verification WHERE id = m.verification_id)), NULL, NULL, m.duplicate
FROM unnest($5::text[], $6::text[]) AS k (source, message_id)
CROSS JOIN LATERAL (SELECT * FROM inbound_message WHERE source = k.source AND message_id = k.message_id OFFSET 0) m
UNION ALL
SELECT 'fingerprint', encode(f.digest, 'hex'), NULL, f.verification_id::text, f.outcome::text, NULL, NULL, NULL, NULL, false
FROM unnest($7::text[]) AS k (digest)
CROSS JOIN LATERAL (SELECT * FROM message_fingerprint WHERE digest = decode(k.digest, 'hex') OFFSET 0) f
WHERE ${isRemembered("f.first_at", "clock_timestamp()")}`,
};

const nothing = "{}";

export async function readState(
  statements: Statements,
  messages: readonly InboundMessage[],
  lookUpIds: boolean,
): Promise<ReadState> {
  const fingerprints: string[] = [];
  const destinations: string[] = [];
  const candidates: string[] = [];
  /** Whether several messages have the candidate: the first may end its verification, and the others are judged by its text. */
  const areShared: boolean[] = [];
  const positions = new Map<string, number>();
  const phoneEnvironments: Environment[] = [];
  const phones: string[] = [];
  const asked = new Set<string>();
  for (const { content } of messages) {
    if (!content) continue;
    fingerprints.push(content.fingerprint);
    if (content.environment === null) continue;
    const sender = senderKey(content.environment, content.from);
    if (!asked.has(sender)) {
      asked.add(sender);
      phoneEnvironments.push(content.environment);
      phones.push(content.from);
    }
    for (const candidate of content.candidates) {
      const key = codeKey(content.to, candidate);
      const position = positions.get(key);
      if (position !== undefined) {
        areShared[position] = true;
        continue;
      }
      positions.set(key, candidates.length);
      destinations.push(content.to);
      candidates.push(candidate);
      areShared.push(false);
    }
  }
  const rows = await runStatement(statements, stateStatement, [
    textArray(destinations),
    plainArray(candidates),
    plainArray(phoneEnvironments),
    plainArray(phones),
    lookUpIds ? textArray(messages.map(({ source }) => source)) : nothing,
    lookUpIds ? textArray(messages.map(({ messageId }) => messageId)) : nothing,
    plainArray(fingerprints),
    flagArray(areShared),
  ]);
  let now = 0;
  const codes = new Map<string, CodeHolder>();
  const rowOf = new Map<string, string>();
  const holders = new Map<string, CodeHolder>();
  const texts = new Map<string, string>();
  const senders = new Map<string, Sender>();
  const answered = new Map<string, Answered>();
  const seen = new Map<string, Judgement>();
  for (const [kind, first, second, third, fourth, fifth, sixth, seventh, time, duplicate] of rows) {
    const judgement = () => ({
      outcome: fourth as InboundOutcome,
      verificationId: third as string | null,
      duplicate: duplicate as boolean,
    });
    switch (kind) {
      case "clock":
        now = time as number;
        break;
      case "code": {
        const position = Number(first) - 1;
        rowOf.set(third as string, second as string);
        const holder = holders.get(third as string) ?? {
          verificationId: third as string,
          environment: seventh as Environment,
          status: fourth as VerificationStatus,
          mode: fifth as VerificationMode,
          expectedPhone: sixth as string | null,
          expiresAt: time as number,
          smsText: null,
        };
        holders.set(holder.verificationId, holder);
        codes.set(codeKey(destinations[position] as string, candidates[position] as string), holder);
        break;
      }
      case "text":
        texts.set(first as string, second as string);
        break;
      case "sender":
        senders.set(senderKey(first as Environment, second as string), {
          environment: first as Environment,
          phone: second as string,
          missTimes: (third as string) === "" ? [] : (third as string).split(",").map(Number),
          mutedUntil: time as number | null,
        });
        break;
      case "verifying": {
        const content = { from: first, to: second, environment: fourth, text: fifth } as FingerprintedContent;
        const verificationId = third as string;
        seen.set(fingerprintOf(content), { outcome: "verified", verificationId, duplicate: false });
        break;
      }
      case "message":
        answered.set(messageKey(first as string, second as string), {
          ...judgement(),
          destination: sixth as string | null,
        });
        break;
      // The row of kind `verifying` takes precedence: a process of an earlier version may have judged the repeat differently.
      default:
        if (!seen.has(first as string)) seen.set(first as string, judgement());
    }
  }
  for (const [id, holder] of holders) holder.smsText = texts.get(id) ?? null;
  return { now, answered, fingerprints: seen, senders, codes, rowOf };
}
