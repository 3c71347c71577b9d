import { type UsageCount, usageLimitExceeded } from "../core/usage.ts";
import { plainArray } from "./array-literal.ts";
import { createBatcher } from "./batcher.ts";
import { type Database, runStatement } from "./database.ts";

/** The month that a call counts in: the calendar month in Seoul. */
export const usageMonth = "date_trunc('month', now() AT TIME ZONE 'Asia/Seoul')::date";

/**
 * Seconds until the next month begins; more than 0. By the same clock as `usageMonth`, so that no call is refused for a month
 * that is over.
 */
export const secondsToNextMonth = `ceil(extract(epoch FROM
  (${usageMonth} + interval '1 month') AT TIME ZONE 'Asia/Seoul' - now()))::float8`;

/**
 * The first part of every statement that charges calls: `charged` adds each project's calls to its count of the month, as far
 * as its limit allows. $1 are the projects, $2 their calls in this batch.
 *
 * Month and limit are evaluated in this statement and the count under the row's lock, so that no two calls on any node get the
 * same number and none gets past the limit. Projects are taken in id order, so that batches cannot deadlock.
 */
export const chargedCalls = `
charged AS (
  INSERT INTO usage AS u (project_id, month, calls, granted, call_limit)
  SELECT p.id, ${usageMonth}, g.granted, g.granted, p.usage_limit
  FROM unnest($1::uuid[], $2::bigint[]) AS d (project_id, calls)
  JOIN project p ON p.id = d.project_id
  CROSS JOIN LATERAL (SELECT least(d.calls, p.usage_limit) AS granted) g
  ORDER BY p.id
  ON CONFLICT (project_id, month) DO UPDATE SET
    calls = u.calls + greatest(0, least(excluded.granted, excluded.call_limit - u.calls)),
    granted = greatest(0, least(excluded.granted, excluded.call_limit - u.calls)),
    call_limit = excluded.call_limit
  RETURNING u.project_id, u.calls, u.granted, u.call_limit
)`;

/**
 * The calls of a batch by project, and each item's rank among its project's: from 1 on, or 0 for callers that are not charged.
 */
export interface BatchCharges {
  readonly projects: string;
  readonly calls: string;
  readonly ranks: number[];
}

export function chargesOf(chargeTo: readonly (string | null)[]): BatchCharges {
  const calls = new Map<string, number>();
  const ranks = chargeTo.map((projectId) => {
    if (projectId === null) return 0;
    const rank = (calls.get(projectId) ?? 0) + 1;
    calls.set(projectId, rank);
    return rank;
  });
  return { projects: plainArray([...calls.keys()]), calls: plainArray([...calls.values()]), ranks };
}

/** The project's usage limit was reached before this call. */
export class UsageLimitReached {
  readonly secondsToNextMonth: number;

  constructor(secondsToNextMonth: unknown) {
    this.secondsToNextMonth = Number(secondsToNextMonth ?? 1);
  }
}

/**
 * The usage count of the call with this rank, from the columns `calls`, `granted`, `call_limit` of `charged` and
 * `secondsToNextMonth`; undefined if the call is not charged.
 */
export function usageOf(
  rank: number,
  calls: unknown,
  granted: unknown,
  limit: unknown,
  seconds: unknown,
): UsageCount | undefined | UsageLimitReached {
  if (rank === 0) return undefined;
  if (typeof calls !== "number" || typeof granted !== "number" || rank > granted)
    return new UsageLimitReached(seconds);
  return { calls: calls - granted + rank, limit: typeof limit === "number" ? limit : null };
}

/** How many of the calls of a statement, of which these are the usage counts, it has charged. */
export function countCharged(usages: readonly (UsageCount | undefined | UsageLimitReached)[]): number {
  return usages.filter((usage) => usage !== undefined && !(usage instanceof UsageLimitReached)).length;
}

export interface UsageLedger {
  /** Counts one call. Refuses with usage_limit_exceeded. */
  charge(projectId: string): Promise<UsageCount>;
}

const chargeStatement = {
  name: "charge",
  text: `WITH ${chargedCalls}
SELECT project_id::text, calls::float8, granted::float8, call_limit::float8, ${secondsToNextMonth} FROM charged`,
};

/** Charges calls that fail before they reach a statement that charges them. */
export function createUsageLedger(database: Database): UsageLedger {
  const charge = createBatcher<string, UsageCount | UsageLimitReached>({
    observer: database.observer.batch("usage"),
    maxSize: 500,
    maxWaiting: 10_000,
    async run(projectIds) {
      const batchCharges = chargesOf(projectIds);
      const rows = await runStatement(database, chargeStatement, [batchCharges.projects, batchCharges.calls]);
      const charged = new Map(rows.map((row) => [row[0], row]));
      const usages = projectIds.map((projectId, index) => {
        const [, calls, granted, limit, seconds] = charged.get(projectId) ?? [];
        return (
          usageOf(batchCharges.ranks[index] ?? 0, calls, granted, limit, seconds) ??
          new UsageLimitReached(seconds)
        );
      });
      database.observer.charged(countCharged(usages));
      return usages;
    },
  });
  return {
    async charge(projectId) {
      const usage = await charge(projectId);
      if (usage instanceof UsageLimitReached) throw usageLimitExceeded(usage.secondsToNextMonth);
      return usage;
    },
  };
}
