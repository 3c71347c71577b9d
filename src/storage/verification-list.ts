import { firstUuid, lastUuid } from "../core/ids.ts";
import { environments } from "../core/project.ts";
import type { Verification, VerificationFilter, VerificationPage } from "../core/verification.ts";
import { plainArray } from "./array-literal.ts";
import { nowMs, verificationColumns, verificationOf, verificationWidth } from "./verification-row.ts";

/**
 * How many verifications of an environment one page looks at, matching or not: a filter that nothing matches costs about what
 * the largest page does, 2 ms, and not a walk through all that the project has ever had. A full page of 1000 lies within.
 */
const mostWalked = 2_000;

/**
 * By the columns of the index, all three, in the conditions too: where most verifications are of one project, a condition on
 * the id alone is looked up by the primary key, and another project's page reads its way through all of that one's. The
 * limit is a parameter: a plan for a small table would else sort all there is.
 */
const newestFirst = "ORDER BY v.project_id DESC, v.environment DESC, v.id DESC";

/**
 * A page, newest first: each environment's by itself, since only within one does the index have them in the order asked for.
 * Creation times bound the ids, too, which begin with a process' time: a day is more than clocks differ by. A row past its
 * expiry is found as expired and not as pending, whether or not it has been moved yet. The last row that an environment's
 * walk comes to is there in any case, and says so.
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

/** The first id of a process whose clock shows that time. */
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
      mostWalked,
    ],
  };
}

/**
 * The page in the statement's rows, which are those of several walks. What lies behind the end of one is left for the next page: that
 * one may have some before it.
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
