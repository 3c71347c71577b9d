import type { VerificationFilter } from "../core/verification.ts";
import { plainArray } from "./array-literal.ts";
import { nowMs, verificationColumns } from "./verification-row.ts";

/**
 * A page by the index on project, environment and id, newest first. A row past its expiry is found as
 * expired and not as pending, whether or not it has been moved yet.
 */
const statementText = `
SELECT ${verificationColumns}
FROM verification v
WHERE v.project_id = $1::uuid
  AND v.environment = ANY ($2::environment[])
  AND ($3::uuid IS NULL OR v.id < $3::uuid)
  AND (CASE WHEN v.status = 'pending' AND v.expires_at <= ${nowMs} THEN 'expired' ELSE v.status END) = ANY ($4::verification_status[])
  AND ($5::text IS NULL OR v.client_reference = $5)
  AND ($6::text IS NULL OR v.phone = $6)
  AND ($7::float8 IS NULL OR v.created_at >= to_timestamp($7::float8 / 1000))
  AND ($8::float8 IS NULL OR v.created_at < to_timestamp($8::float8 / 1000))
ORDER BY v.id DESC
LIMIT $9::int`;

const everyEnvironment = ["live", "test"] as const;
const everyStatus = ["pending", "verified", "expired", "cancelled"] as const;

export function listStatement(filter: VerificationFilter): { name: string; text: string; values: unknown[] } {
  return {
    name: "list",
    text: statementText,
    values: [
      filter.projectId,
      plainArray(filter.environment === null ? everyEnvironment : [filter.environment]),
      filter.before,
      plainArray(filter.statuses.length === 0 ? everyStatus : filter.statuses),
      filter.clientReference,
      filter.phone,
      filter.createdFrom,
      filter.createdBefore,
      filter.limit,
    ],
  };
}
