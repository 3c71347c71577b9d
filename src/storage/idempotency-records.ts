import { idempotencyKeyHours } from "../core/idempotency-key.ts";
import { isSameRequest } from "../core/request-digest.ts";
import type { CreationOutcome, NewVerification } from "../core/verification.ts";
import { plainArray, textArray } from "./array-literal.ts";
import { runStatement, type Statements } from "./database.ts";
import { verificationColumns, verificationOf } from "./verification-row.ts";

/** How long an idempotency key is retained, from its creation response on. */
export const keyLife = `interval '${idempotencyKeyHours} hours'`;

/**
 * Whether an idempotency record `i` is still retained. Written so that the index on `created_at` does not serve it: planned on a
 * single page of records, the look-up of a key would go through all records of a day by that index.
 */
export const liveRecord = `i.created_at + ${keyLife} > now()`;

/**
 * The creation response, from an idempotency record `i` and its verification `v`: `repeated` resets the columns that have
 * changed since.
 */
export const firstAnswerColumns = `encode(i.request_digest, 'hex'), i.verification_url, v.destination, v.sms_text, ${verificationColumns}`;

/**
 * The recorded response in a row's `firstAnswerColumns` from `offset` on, as of its creation: pending, with that server time.
 */
export function repeated(request: NewVerification, row: readonly unknown[], offset: number): CreationOutcome {
  if (!isSameRequest(row[offset] as string, request)) return { kind: "conflict" };
  const verification = verificationOf(row, offset + 4);
  if (verification === null)
    throw new Error("an idempotency record names a verification that does not exist");
  return {
    kind: "replayed",
    created: {
      verification: {
        ...verification,
        status: "pending",
        phone: null,
        carrier: null,
        verifiedAt: null,
        serverTime: verification.createdAt,
      },
      verificationUrl: row[offset + 1] as string,
      destination: row[offset + 2] as string,
      smsText: row[offset + 3] as string,
    },
  };
}

/** Reads the recorded responses of keys that were lost in a race. */
const firstAnswerStatement = {
  name: "first_answer",
  text: `
SELECT r.position::int, ${firstAnswerColumns}
FROM unnest($1::uuid[], $2::environment[], $3::text[]) WITH ORDINALITY AS r (project_id, environment, key, position)
CROSS JOIN LATERAL (
  SELECT * FROM idempotency_record i
  WHERE i.project_id = r.project_id AND i.environment = r.environment AND i.key = r.key AND ${liveRecord} OFFSET 0
) i
CROSS JOIN LATERAL (SELECT * FROM verification v WHERE v.id = i.verification_id OFFSET 0) v`,
};

/** The rows of the requests whose keys have a record: a request's position among these, from 1 on, and its `firstAnswerColumns`. */
export function readFirstAnswers(
  statements: Statements,
  requests: readonly NewVerification[],
): Promise<unknown[][]> {
  return runStatement(statements, firstAnswerStatement, [
    plainArray(requests.map(({ projectId }) => projectId)),
    plainArray(requests.map(({ environment }) => environment)),
    textArray(requests.map(({ idempotencyKey }) => idempotencyKey)),
  ]);
}
