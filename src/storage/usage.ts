import { type UsageCount, usageLimitExceeded } from "../core/usage.ts";
import { plainArray } from "./array-literal.ts";
import { createBatcher } from "./batcher.ts";
import { type Database, runStatement } from "./database.ts";

/** The month that calls count in: the calendar's, in Seoul. */
export const usageMonth = "date_trunc('month', now() AT TIME ZONE 'Asia/Seoul')::date";

/**
 * The first part of every statement that charges calls: `charged` adds each project's calls to its count
 * of the month, as many as its limit leaves room for. $1 are the projects, $2 their calls in this batch.
 *
 * Month and limit are evaluated here, under the row's lock, so that no two calls on any node see one number
 * and none gets past the limit. Projects are taken in order of their ids, so that batches cannot deadlock.
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

/** The demand of a batch, and each item's place in its project's share: 1 for the first, 0 for uncounted callers. */
export interface Demand {
  readonly projects: string;
  readonly calls: string;
  readonly ranks: number[];
}

export function demandOf(chargeTo: readonly (string | null)[]): Demand {
  const calls = new Map<string, number>();
  const ranks = chargeTo.map((projectId) => {
    if (projectId === null) return 0;
    const rank = (calls.get(projectId) ?? 0) + 1;
    calls.set(projectId, rank);
    return rank;
  });
  return { projects: plainArray([...calls.keys()]), calls: plainArray([...calls.values()]), ranks };
}

/**
 * What the columns `calls`, `granted`, `call_limit` of `charged` mean for the call of a rank: its count,
 * undefined where it is not counted, null where the limit was reached before it.
 */
export function usageOf(
  rank: number,
  calls: unknown,
  granted: unknown,
  limit: unknown,
): UsageCount | undefined | null {
  if (rank === 0) return undefined;
  if (typeof calls !== "number" || typeof granted !== "number") return null;
  if (rank > granted) return null;
  return { calls: calls - granted + rank, limit: typeof limit === "number" ? limit : null };
}

export interface UsageLedger {
  /** Counts one call. Refuses with usage_limit_exceeded. */
  charge(projectId: string): Promise<UsageCount>;
}

const chargeStatement = {
  name: "charge",
  text: `WITH ${chargedCalls} SELECT project_id::text, calls::float8, granted::float8, call_limit::float8 FROM charged`,
};

/** Counts the calls that fail before they reach a statement of their own. */
export function createUsageLedger(database: Database): UsageLedger {
  const charge = createBatcher<string, UsageCount | null>({
    observer: database.observer.batch("usage"),
    maxSize: 500,
    maxWaiting: 10_000,
    async run(projectIds) {
      const demand = demandOf(projectIds);
      const rows = await runStatement(database, chargeStatement, [demand.projects, demand.calls]);
      const charged = new Map(rows.map((row) => [row[0], row]));
      return projectIds.map((projectId, index) => {
        const [, calls, granted, limit] = charged.get(projectId) ?? [];
        return usageOf(demand.ranks[index] ?? 0, calls, granted, limit) ?? null;
      });
    },
  });
  return {
    async charge(projectId) {
      const usage = await charge(projectId);
      if (usage === null) throw usageLimitExceeded();
      return usage;
    },
  };
}
