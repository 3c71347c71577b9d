import { firstUuid, lastUuid } from "../core/ids.ts";
import type { VerificationFilter } from "../core/verification.ts";
import { plainArray } from "./array-literal.ts";
import { nowMs, verificationColumns } from "./verification-row.ts";

/**
 * A page by the index on project, environment and id, newest first: each environment's by itself, since only within one
 * does the index have them in the order asked for. Creation times bound the ids, too, which begin with a process' time: a
 * day is more than clocks differ by. A row past its expiry is found as expired and not as pending, whether or not it
 * has been moved yet.
 */
const statementText = `
SELECT ${verificationColumns}
FROM unnest($2::environment[]) AS e (environment)
CROSS JOIN LATERAL (
  SELECT * FROM verification v
  WHERE v.project_id = $1::uuid AND v.environment = e.environment
    AND v.id < coalesce($3::uuid, '${lastUuid}')
    AND v.id >= coalesce($7::uuid, '${firstUuid}') AND v.id < coalesce($8::uuid, '${lastUuid}')
    AND (CASE WHEN v.status = 'pending' AND v.expires_at <= ${nowMs} THEN 'expired' ELSE v.status END) = ANY ($4::verification_status[])
    AND ($5::text IS NULL OR v.client_reference = $5)
    AND ($6::text IS NULL OR v.phone = $6)
    AND ($9::float8 IS NULL OR v.created_at >= to_timestamp($9::float8 / 1000))
    AND ($10::float8 IS NULL OR v.created_at < to_timestamp($10::float8 / 1000))
  ORDER BY v.id DESC
  LIMIT $11::int
) v
ORDER BY v.id DESC
LIMIT $11::int`;

const dayMs = 86_400_000;

/** The first id of a process whose clock shows that time. */
function idAt(timeMs: number | null, offsetMs: number): string | null {
  if (timeMs === null) return null;
  const hex = Math.min(Math.max(Math.floor(timeMs + offsetMs), 0), 2 ** 48 - 1).toString(16);
  return `${hex.padStart(12, "0")}${"0".repeat(20)}`;
}

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
      idAt(filter.createdFrom, -dayMs),
      idAt(filter.createdBefore, dayMs),
      filter.createdFrom,
      filter.createdBefore,
      filter.limit,
    ],
  };
}
