import type { Environment } from "../core/project.ts";
import { usageLimitExceeded } from "../core/usage.ts";
import type { Charged, Verification, VerificationLookup, Verifications } from "../core/verification.ts";
import { Failure } from "../failures.ts";
import { plainArray } from "./array-literal.ts";
import { createBatcher } from "./batcher.ts";
import { createConcurrencyLimit } from "./concurrency-limit.ts";
import { createCreations } from "./creations.ts";
import { type Database, type NamedStatement, type Pipeline, runStatement } from "./database.ts";
import { isDeadlock } from "./database-errors.ts";
import { liveRecord } from "./idempotency-records.ts";
import { waitForStandby } from "./standby-wait.ts";
import {
  expireDue,
  noticesSent,
  reportTransitions,
  transitionCounts,
  transitionEffects,
} from "./transition.ts";
import {
  chargedCalls,
  chargesOf,
  countCharged,
  secondsToNextMonth,
  UsageLimitReached,
  usageMonth,
  usageOf,
} from "./usage.ts";
import { listStatement, pageOf } from "./verification-list.ts";
import { nowMs, verificationColumns, verificationOf, verificationWidth } from "./verification-row.ts";

interface ChargedLookup {
  readonly lookup: VerificationLookup;
  readonly chargeTo: string | null;
}

/**
 * The CTE of a batch's lookups, from the parameters $3 to $8. A project's usage is returned only in the row of its first
 * lookup.
 */
const lookups = `
lookup AS MATERIALIZED (
  SELECT l.position, l.id, l.project_id, l.environment, l.rank, c.calls, c.granted, c.call_limit,
    l.rank = 0 OR l.rank <= c.granted AS admitted
  FROM unnest($3::int[], $4::uuid[], $5::uuid[], $6::environment[], $7::uuid[], $8::int[])
    AS l (position, id, project_id, environment, charge_to, rank)
  LEFT JOIN charged c ON c.project_id = l.charge_to
)`;

const withinBounds = `
  v.id = l.id
  AND (l.project_id IS NULL OR v.project_id = l.project_id)
  AND (l.environment IS NULL OR v.environment = l.environment)`;

/**
 * A LATERAL subquery looks each verification up by its id. A join, planned while there are few verifications, would later read
 * them all.
 */
const found = `LATERAL (SELECT * FROM verification v WHERE l.admitted AND ${withinBounds} OFFSET 0)`;

const usageColumns = ["l.calls::float8", "l.granted::float8", "l.call_limit::float8", secondsToNextMonth]
  .map((column) => `CASE WHEN l.rank = 1 THEN ${column} END`)
  .join(", ");
/** Where the verification's columns begin. */
const firstColumn = 5;

/** Read and charge in one statement: a call is counted exactly when it is answered. */
const findStatement = {
  name: "find",
  text: `
WITH ${chargedCalls}, ${lookups}
SELECT l.position, ${usageColumns}, ${verificationColumns}
FROM lookup l LEFT JOIN ${found} v ON true`,
};

/**
 * Rows are updated in id order: unordered batches deadlock. (Behind a pooler that drops the planner's settings a small table
 * may be read in another order; a deadlock is retried.) A row that another transaction has changed since the snapshot is left
 * alone, and still looks pending to this statement: `cancelledResult` reads it again.
 */
const cancelStatement = {
  name: "cancel",
  text: `
WITH ${chargedCalls}, ${lookups},
target AS MATERIALIZED (
  SELECT l.position, v.*
  FROM (SELECT * FROM lookup ORDER BY id) l
  CROSS JOIN LATERAL (SELECT ctid AS row, * FROM verification v WHERE l.admitted AND ${withinBounds} OFFSET 0) v
),
cancelled AS (
  UPDATE verification v SET status = 'cancelled'
  FROM target t WHERE v.ctid = t.row AND v.status = 'pending' AND v.expires_at > ${nowMs}
  RETURNING v.id, v.webhook_configuration_id
),${transitionEffects("cancelled")}
SELECT l.position, ${usageColumns}, ${verificationColumns}, c.id IS NOT NULL, ${noticesSent("cancelled")}
FROM lookup l
LEFT JOIN target v ON v.position = l.position
LEFT JOIN cancelled c ON c.id = v.id`,
};

/** Expires those of the given verifications that are due. Event and transition commit together. */
const expireStatement = {
  name: "expire",
  text: `
WITH ${expireDue("v.id = ANY ($1::uuid[])", "wait")}
SELECT ${transitionCounts("expired")}, ${noticesSent("expired")}`,
};

const readAgainStatement = {
  name: "read_again",
  text: `SELECT ${verificationColumns} FROM verification v WHERE v.id = ANY ($1::uuid[])`,
};

const peekStatement = {
  name: "peek_creation",
  text: `
SELECT
  EXISTS (
    SELECT FROM idempotency_record i
    WHERE i.project_id = $1 AND i.environment = $2::environment AND i.key = $3
      AND ${liveRecord}
  ),
  (
    SELECT ${secondsToNextMonth} FROM project p
    LEFT JOIN usage u ON u.project_id = p.id AND u.month = ${usageMonth}
    WHERE p.id = $1 AND coalesce(u.calls, 0) >= p.usage_limit
  )`,
};

type LookedUp = Charged<Verification | null> | UsageLimitReached;

const isUncharged = (result: LookedUp) => result instanceof UsageLimitReached || result.usage === undefined;

const isCancelled = (result: LookedUp) =>
  !(result instanceof UsageLimitReached) && result.value?.status === "cancelled";

const batchSize = 500;
const maxWaiting = 10_000;

export function createVerifications(database: Database): Verifications {
  const creations = createCreations(database);
  const reading = database.openPipeline();
  const cancelling = database.openPipeline();

  /** Runs a statement over a batch of lookups; `seen` applies what a row says besides the verification. */
  async function lookUp(
    pipeline: Pipeline,
    statement: NamedStatement,
    items: readonly ChargedLookup[],
    seen: (verification: Verification, row: readonly unknown[]) => Verification,
  ): Promise<LookedUp[]> {
    const batchCharges = chargesOf(items.map(({ chargeTo }) => chargeTo));
    const rows = await runStatement(pipeline, statement, [
      batchCharges.projects,
      batchCharges.calls,
      plainArray(items.map((_, position) => position)),
      plainArray(items.map(({ lookup }) => lookup.id)),
      plainArray(items.map(({ lookup }) => lookup.projectId)),
      plainArray(items.map(({ lookup }) => lookup.environment)),
      plainArray(items.map(({ chargeTo }) => chargeTo)),
      plainArray(batchCharges.ranks),
    ]);
    if (rows.length !== items.length) throw new Error("a lookup returned no result");
    const results = new Array<LookedUp>(items.length);
    const charged = new Map<string | null | undefined, readonly unknown[]>();
    for (const row of rows) {
      if (row[1] !== null) charged.set(items[row[0] as number]?.chargeTo, row);
    }
    const usages = rows.map((row) => {
      const position = row[0] as number;
      const [, calls, granted, limit, seconds] = charged.get(items[position]?.chargeTo) ?? [];
      return usageOf(batchCharges.ranks[position] ?? 0, calls, granted, limit, seconds);
    });
    database.observer.charged(countCharged(usages));
    for (const [index, row] of rows.entries()) {
      const position = row[0] as number;
      const usage = usages[index];
      const verification = verificationOf(row, firstColumn);
      results[position] =
        usage instanceof UsageLimitReached
          ? usage
          : { usage, value: verification && seen(verification, row) };
    }
    return results;
  }

  const find = createBatcher<ChargedLookup, LookedUp>({
    observer: database.observer.batch("read"),
    maxSize: batchSize,
    maxWaiting,
    isPipelined: reading.isPipelined,
    run: (items) => lookUp(reading, findStatement, items, (verification) => verification),
  });

  const cancel = createBatcher<ChargedLookup, LookedUp>({
    observer: database.observer.batch("cancel"),
    maxSize: batchSize,
    maxWaiting,
    isPipelined: cancelling.isPipelined,
    async run(items) {
      const cancelled = new Map<string, Environment>();
      const lookUpAndCancel = () =>
        lookUp(cancelling, cancelStatement, items, (verification, row) => {
          if (row[firstColumn + verificationWidth] !== true) return verification;
          cancelled.set(verification.id, verification.environment);
          return { ...verification, status: "cancelled" };
        });
      const results = await lookUpAndCancel().catch((error: unknown) => {
        if (!isDeadlock(error)) throw error;
        return lookUpAndCancel();
      });
      for (const environment of cancelled.values()) database.observer.moved("cancelled", environment, 1);
      if (cancelled.size === 0 && results.every(isUncharged) && results.some(isCancelled))
        await waitForStandby(cancelling);
      return results;
    },
  });

  const expire = createBatcher<string, undefined>({
    observer: database.observer.batch("expire"),
    maxSize: batchSize,
    maxWaiting,
    async run(ids) {
      const [moved = []] = await runStatement(database, expireStatement, [plainArray(ids)]);
      reportTransitions(database.observer, "expired", moved);
      return ids.map(() => undefined);
    },
  });

  const readAgain = createBatcher<string, Verification | undefined>({
    observer: database.observer.batch("read_again"),
    maxSize: batchSize,
    maxWaiting,
    async run(ids) {
      const rows = await runStatement(database, readAgainStatement, [plainArray(ids)]);
      const found = rows.map((row) => verificationOf(row, 0)).filter((verification) => verification !== null);
      const verifications = new Map(found.map((verification) => [verification.id, verification]));
      return ids.map((id) => verifications.get(id));
    },
  });

  const listing = createConcurrencyLimit(database);

  /**
   * Before a verification is answered as `expired`, its row is moved by the expiry's own compare-and-set. If that changes
   * nothing, another transaction was first, and the answer is the state it has left. Without this, an SMS that had waited for a
   * lock since before the expiry could verify what a read has already called expired.
   */
  async function settled(verification: Verification): Promise<Verification> {
    if (isSettled(verification)) return verification;
    await expire(verification.id);
    return (await readAgain(verification.id)) ?? verification;
  }

  async function settledResult(found: Promise<LookedUp>): Promise<Charged<Verification | null>> {
    const result = await found;
    if (result instanceof UsageLimitReached) throw usageLimitExceeded(result.secondsToNextMonth);
    if (result.value === null || isSettled(result.value)) return result;
    return { usage: result.usage, value: await settled(result.value) };
  }

  /** A result that is still pending was found pending but not cancelled: another transaction changed the row first. */
  async function cancelledResult(
    lookup: VerificationLookup,
    chargeTo: string | null,
  ): Promise<Charged<Verification | null>> {
    const result = await settledResult(cancel({ lookup, chargeTo }));
    if (result.value?.status !== "pending") return result;
    let value = (await readAgain(result.value.id)) ?? null;
    // The row was changed but has not ended, so it can be cancelled. The call was already charged.
    if (value?.status === "pending") ({ value } = await settledResult(cancel({ lookup, chargeTo: null })));
    if (value?.status === "pending") throw new Failure("service_unavailable");
    return { usage: result.usage, value };
  }

  const asked = { create: creations, read: find, cancel };

  return {
    create: creations.create,

    async peekCreation({ projectId, environment, idempotencyKey }) {
      const [row] = await runStatement(database, peekStatement, [projectId, environment, idempotencyKey]);
      return {
        known: row?.[0] === true,
        exhaustedForSeconds: (row?.[1] as number | null | undefined) ?? null,
      };
    },

    find: (lookup, chargeTo) => settledResult(find({ lookup, chargeTo })),

    cancel: cancelledResult,

    list: (filter) =>
      listing(filter.projectId, async () => {
        const statement = listStatement(filter);
        const rows = await runStatement(database, statement, statement.values);
        const { verifications, after } = pageOf(rows, filter.limit);
        const shown = await Promise.all(verifications.map(settled));
        const isAskedFor = ({ status }: Verification) =>
          filter.statuses.length === 0 || filter.statuses.includes(status);
        // A verification found as expired may have been verified in time, by a transaction that has committed since.
        return { verifications: shown.filter(isAskedFor), after };
      }),

    isOverloaded: (operation) => asked[operation].isOverloaded(),
  };
}

/** Whether the stored status can be answered as it is: it is no pending one past its expiry. */
function isSettled({ status, serverTime, expiresAt }: Verification): boolean {
  return status !== "pending" || serverTime < expiresAt;
}
