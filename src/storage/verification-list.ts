import { firstUuid, lastUuid } from "../core/ids.ts";
import { environments } from "../core/project.ts";
import type { Verification, VerificationFilter, VerificationPage } from "../core/verification.ts";
import { plainArray } from "./array-literal.ts";
import { nowMs, verificationColumns, verificationOf, verificationWidth } from "./verification-row.ts";

/**
 * How many verifications of an environment one page scans, matching or not. A filter without matches then costs about as much
 * as the largest page, 2 ms, instead of a scan of all verifications the project has ever had. A full page of 1000 fits.
 */
const maxScanned = 2_000;

/**
 * All three columns of the index, in the order and in the conditions. If most verifications belong to one project, a condition
 * on the id alone is answered by the primary key, and another project's page scans all verifications of the large one. The
 * limit is a parameter: with a constant, a plan made for a small table would sort the whole table.
 */
const newestFirst = "ORDER BY v.project_id DESC, v.environment DESC, v.id DESC";

/**
 * A page, newest first. Each environment is scanned by itself, since the index has the requested order only within one.
 * Creation times also bound the ids, which begin with the time of the process that made them; the margin of a day exceeds any
 * clock skew. A row past its expiry matches `expired` and not `pending`, whether or not it has been moved yet. If an
 * environment's scan reaches its limit, its last row is returned even if it does not match, and is marked as that.
 */
const statementText = `
SELECT ${verificationColumns}, v.matches, v.walked = $12::int
FROM unnest($2::environment[]) AS e (environment)
CROSS JOIN LATERAL (
  SELECT * FROM (
    SELECT v.*, row_number() OVER (${newestFirst}) AS walked,
      (CASE WHEN v.status = 'pending' AND v.expires_at <= ${nowMs} THEN 'expired' ELSE v.status END) = ANY ($4::verification_status[])
      AND ($5::text IS NULL OR v.client_reference = $5)
      AND ($6::text IS NULL OR v.phone = $6)
      AND ($9::float8 IS NULL OR v.created_at >= to_timestamp($9::float8 / 1000))
      AND ($10::float8 IS NULL OR v.created_at < to_timestamp($10::float8 / 1000)) AS matches
    FROM (
      SELECT * FROM verification v
      WHERE (v.project_id, v.environment, v.id) < ($1::uuid, e.environment, least($3::uuid, $8::uuid, '${lastUuid}'))
        AND (v.project_id, v.environment, v.id) >= ($1::uuid, e.environment, coalesce($7::uuid, '${firstUuid}'))
      ${newestFirst}
      LIMIT $12::int
    ) v
  ) v
  WHERE v.matches OR v.walked = $12::int
  ${newestFirst}
  LIMIT $11::int
) v
ORDER BY v.id DESC
LIMIT $11::int`;

const dayMs = 86_400_000;

/** The lowest id that a process can make when its clock shows `timeMs + offsetMs`. */
function idAt(timeMs: number | null, offsetMs: number): string | null {
  if (timeMs === null) return null;
  const hex = Math.min(Math.max(Math.floor(timeMs + offsetMs), 0), 2 ** 48 - 1).toString(16);
  return `${hex.padStart(12, "0")}${"0".repeat(20)}`;
}

const everyStatus = ["pending", "verified", "expired", "cancelled"] as const;

export function listStatement(filter: VerificationFilter): { name: string; text: string; values: unknown[] } {
  return {
    name: "list",
    text: statementText,
    values: [
      filter.projectId,
      plainArray(filter.environment === null ? environments : [filter.environment]),
      filter.before,
      plainArray(filter.statuses.length === 0 ? everyStatus : filter.statuses),
      filter.clientReference,
      filter.phone,
      idAt(filter.createdFrom, -dayMs),
      idAt(filter.createdBefore, dayMs),
      filter.createdFrom,
      filter.createdBefore,
      filter.limit + 1,
      maxScanned,
    ],
  };
}

/**
 * The page from the statement's rows, which come from one scan per environment. If one scan reached its limit, the page ends
 * there: that environment may have more matches that come before the other scans' remaining rows.
 */
export function pageOf(rows: readonly (readonly unknown[])[], limit: number): VerificationPage {
  const verifications: Verification[] = [];
  for (const row of rows) {
    const verification = verificationOf(row, 0);
    if (verification === null) continue;
    const [matches, endsWalk] = row.slice(verificationWidth);
    if (matches === true && verifications.length === limit)
      return { verifications, after: verifications.at(-1)?.id ?? null };
    if (matches === true) verifications.push(verification);
    if (endsWalk === true) return { verifications, after: verification.id };
  }
  return { verifications, after: null };
}
