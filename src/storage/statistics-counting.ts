import { idempotencyKeyHours } from "../core/idempotency-key.ts";
import { bucketsPerDoubling, timeBuckets } from "../core/time-to-verify.ts";
import { commitHorizon } from "./commit-horizon.ts";
import { type Database, inTransaction, runStatement } from "./database.ts";
import { lowestIdAt, maxClockSkew, nowMs } from "./verification-row.ts";

/**
 * Counts creations and transitions into hourly rows, some time after the statements that make them, which write nothing for
 * this. A batch and the counting position are written by one statement, so each creation and each transition is counted exactly
 * once, wherever a process is interrupted and however many of them count.
 */
export interface StatisticsCounting {
  /** Counts a batch; resolves to whether more is waiting. */
  count(): Promise<boolean>;
}

/** Settled rows are at least two seconds old: anything younger can only have been counted by a clock that was ahead. */
const youngestSettled = `${nowMs} - interval '2 seconds'`;

/** Some 7 ms of work. With batches of 30 ms everything else waited at full load. */
const batchSize = 1_000;

/** The columns of a verification `v` by which it is counted. */
const place = "v.project_id, v.environment, v.destination";

const hourOf = (time: string) => `date_trunc('hour', ${time}, 'UTC')`;

function creations(parts: { readonly from: string; readonly createdAt: string }): string {
  const { from, createdAt } = parts;
  return `
SELECT ${place}, ${hourOf(createdAt)} AS hour, 'created' AS fact, '' AS carrier, NULL::int AS bucket,
  NULL::timestamptz AS verified_at
FROM ${from}`;
}

const secondsToVerify = "extract(epoch FROM v.verified_at - v.created_at)::float8";

function transitions(from: string): string {
  return `
SELECT ${place}, ${hourOf("e.occurred_at")} AS hour, e.type::text AS fact, coalesce(v.carrier::text, '') AS carrier,
  CASE WHEN e.type = 'verification.verified' THEN
    least(${timeBuckets - 1}, floor(ln(greatest(1, ${secondsToVerify})) * ${bucketsPerDoubling / Math.LN2})::int)
  END AS bucket,
  CASE WHEN e.type = 'verification.verified' THEN e.occurred_at END AS verified_at
FROM ${from}`;
}

const sumWhere = (condition: string) => `coalesce(sum(c.verified) FILTER (WHERE ${condition}), 0)`;

const summedTimes = `ARRAY[${Array.from({ length: timeBuckets }, (_, bucket) => sumWhere(`c.bucket = ${bucket}`)).join(", ")}]::int[]`;

const addedTimes = `(
    SELECT array_agg(one + other ORDER BY bucket)
    FROM unnest(s.times_to_verify, excluded.times_to_verify) WITH ORDINALITY AS t (one, other, bucket)
  )`;

const widerBuckets = `
    fastest_bucket = least(s.fastest_bucket, excluded.fastest_bucket),
    slowest_bucket = greatest(s.slowest_bucket, excluded.slowest_bucket)`;

/**
 * CTEs that add the rows of a CTE `fact` to their hourly rows. Tables and rows are locked in one order, since two processes may
 * run different statements at the same time.
 */
const counted = `
counted AS MATERIALIZED (
  SELECT f.project_id, f.environment, f.destination, f.hour, f.carrier, f.bucket,
    count(*) FILTER (WHERE f.fact = 'created') AS created,
    count(*) FILTER (WHERE f.fact = 'verification.verified') AS verified,
    count(*) FILTER (WHERE f.fact = 'verification.expired') AS expired,
    count(*) FILTER (WHERE f.fact = 'verification.cancelled') AS cancelled,
    max(f.verified_at) AS verified_at
  FROM fact f GROUP BY 1, 2, 3, 4, 5, 6
),
by_number AS (
  INSERT INTO number_statistics AS s (
    project_id, environment, hour, destination, created, verified, expired, cancelled, times_to_verify,
    fastest_bucket, slowest_bucket, last_verified_at
  )
  SELECT c.project_id, c.environment, c.hour, c.destination, sum(c.created), sum(c.verified), sum(c.expired),
    sum(c.cancelled), ${summedTimes}, min(c.bucket), max(c.bucket), max(c.verified_at)
  FROM counted c GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
  ON CONFLICT (project_id, environment, hour, destination) DO UPDATE SET
    created = s.created + excluded.created, verified = s.verified + excluded.verified,
    expired = s.expired + excluded.expired, cancelled = s.cancelled + excluded.cancelled,
    times_to_verify = ${addedTimes}, ${widerBuckets},
    last_verified_at = greatest(s.last_verified_at, excluded.last_verified_at)
),
by_carrier AS (
  INSERT INTO carrier_statistics AS s (
    project_id, environment, hour, carrier, verified, times_to_verify, fastest_bucket, slowest_bucket, last_verified_at
  )
  SELECT c.project_id, c.environment, c.hour, c.carrier, sum(c.verified), ${summedTimes}, min(c.bucket),
    max(c.bucket), max(c.verified_at)
  FROM counted c WHERE c.verified > 0 GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
  ON CONFLICT (project_id, environment, hour, carrier) DO UPDATE SET
    verified = s.verified + excluded.verified, times_to_verify = ${addedTimes}, ${widerBuckets},
    last_verified_at = greatest(s.last_verified_at, excluded.last_verified_at)
),
of_all AS (
  INSERT INTO reception_statistics AS s (environment, hour, kind, name, created, verified, last_verified_at)
  SELECT c.environment, c.hour, c.kind, c.name, sum(c.created), sum(c.verified), max(c.verified_at)
  FROM (
    SELECT environment, hour, 'number'::reception_kind AS kind, destination AS name, created, verified, verified_at
    FROM counted
    UNION ALL
    SELECT environment, hour, 'carrier', carrier, 0, verified, verified_at FROM counted WHERE verified > 0
  ) c
  GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
  ON CONFLICT (environment, hour, kind, name) DO UPDATE SET
    created = s.created + excluded.created, verified = s.verified + excluded.verified,
    last_verified_at = greatest(s.last_verified_at, excluded.last_verified_at)
)`;

/** A LATERAL subquery looks each one up: a join is planned as a scan of all verifications. */
const verificationOf = (row: string) =>
  `CROSS JOIN LATERAL (SELECT * FROM verification v WHERE v.id = ${row}.verification_id OFFSET 0) v`;

/**
 * Counts the next batch in order of time, up to the instant $1. Times are whole milliseconds, and rows of the same one are
 * counted together. The process that locks the row of the task counts; others find nothing to do.
 *
 * The span enters the query of the facts as scalar subqueries, not as a join: only then is the index on the time used.
 */
function passOf(parts: {
  readonly task: "creations" | "transitions";
  readonly table: string;
  readonly time: string;
  /** The facts of the rows whose time is `within` the span: from its `since` to before its `upto`. */
  readonly facts: (within: string) => string;
  /** Whether counting has fallen so far behind that the rows may be gone. */
  readonly lost?: string;
}) {
  const { task, table, time, facts, lost = "false" } = parts;
  return {
    name: `statistics_${task}`,
    text: `
WITH progress AS MATERIALIZED (
  SELECT p.counted_until AS since, ${lost} AS lost
  FROM statistics_progress p WHERE p.task = '${task}' FOR UPDATE SKIP LOCKED
),
span AS MATERIALIZED (
  SELECT p.since, p.lost, NOT p.lost AND next.found = ${batchSize} AS more,
    greatest(p.since, CASE
      WHEN NOT p.lost AND next.found = ${batchSize} THEN next.last + interval '1 millisecond' ELSE $1::timestamptz
    END) AS upto
  FROM progress p CROSS JOIN LATERAL (
    SELECT count(*) AS found, max(batch.at) AS last
    FROM (
      SELECT t.${time} AS at FROM ${table} t WHERE t.${time} >= p.since AND t.${time} < $1::timestamptz
      ORDER BY t.${time} LIMIT ${batchSize}
    ) batch
  ) next
),
fact AS (${facts(`>= (SELECT since FROM span WHERE NOT lost) AND t.${time} < (SELECT upto FROM span)`)}
),${counted},
moved AS (
  UPDATE statistics_progress p SET counted_until = span.upto FROM span WHERE p.task = '${task}'
),
left_out AS (
  INSERT INTO statistics_gap (begins_at, ends_at, done_up_to)
  SELECT since, upto, ${lowestIdAt(`since - ${maxClockSkew}`)} FROM span WHERE lost AND upto > since
)
SELECT more, since > ${youngestSettled} FROM span`,
  };
}

/**
 * Creations are found by their idempotency records, which have an index on the time. A span whose records may soon be gone
 * becomes a gap, and counting continues with the present.
 */
const creationsStatement = passOf({
  task: "creations",
  table: "idempotency_record",
  time: "created_at",
  lost: `p.counted_until < now() - interval '${idempotencyKeyHours - 1} hours'`,
  facts: (within) =>
    creations({
      from: `idempotency_record t ${verificationOf("t")} WHERE t.created_at ${within}`,
      createdAt: "t.created_at",
    }),
});

const transitionsStatement = passOf({
  task: "transitions",
  table: "event",
  time: "occurred_at",
  facts: (within) =>
    transitions(`(SELECT * FROM event t WHERE t.occurred_at ${within}) e ${verificationOf("e")}`),
});

/**
 * Counts the next verifications of a gap in id order, once no more can fall into the gap. Their events are counted only for the
 * gap without a beginning, which is the time before anything was counted.
 */
const gapStatement = {
  name: "statistics_gap",
  text: `
WITH gap AS MATERIALIZED (
  SELECT g.begins_at, g.ends_at, g.done_up_to FROM statistics_gap g
  WHERE g.ends_at <= $1::timestamptz ORDER BY g.begins_at LIMIT 1 FOR UPDATE SKIP LOCKED
),
batch AS MATERIALIZED (
  SELECT v.id, ${place}, v.carrier, v.created_at, v.verified_at FROM verification v
  WHERE v.id > (SELECT done_up_to FROM gap)
    AND v.id < (SELECT ${lowestIdAt(`ends_at + ${maxClockSkew}`)} FROM gap)
  ORDER BY v.id LIMIT ${batchSize}
),
passed AS MATERIALIZED (
  SELECT count(*) AS found, (array_agg(id ORDER BY id DESC))[1] AS upto FROM batch
),
fact AS (
  ${creations({
    from: "batch v JOIN gap g ON v.created_at >= g.begins_at AND v.created_at < g.ends_at",
    createdAt: "v.created_at",
  })}
  UNION ALL
  ${transitions(`gap g CROSS JOIN batch v
    CROSS JOIN LATERAL (SELECT * FROM event e WHERE e.verification_id = v.id OFFSET 0) e
    WHERE g.begins_at = '-infinity' AND e.occurred_at < g.ends_at`)}
),${counted},
moved AS (
  UPDATE statistics_gap g SET done_up_to = passed.upto
  FROM gap, passed WHERE g.begins_at = gap.begins_at AND passed.found = ${batchSize}
),
closed AS (
  DELETE FROM statistics_gap g USING gap, passed WHERE g.begins_at = gap.begins_at AND passed.found < ${batchSize}
)
SELECT found = ${batchSize} FROM passed`,
};

/**
 * If the counting position is ahead of the clock, the clock was ahead and has been corrected: rows that already have those
 * times were counted, and rows that will get them were not. So the hours from this one on are counted again. A process that
 * counts has locked one of these rows; if any has, nothing is taken back.
 */
const holdCounting = `
SELECT (SELECT count(*) FROM (SELECT FROM statistics_progress FOR UPDATE SKIP LOCKED) held)
    = (SELECT count(*) FROM statistics_progress)
  AND (SELECT count(*) FROM (SELECT FROM statistics_gap FOR UPDATE SKIP LOCKED) held)
    = (SELECT count(*) FROM statistics_gap)
  AND (SELECT max(counted_until) > ${youngestSettled} FROM statistics_progress) AS free`;

const thisHour = hourOf(youngestSettled);
const withoutRecords = `task = 'creations' AND counted_until >= ${thisHour} + interval '${idempotencyKeyHours - 1} hours'`;

/** Run one after the other, each with a snapshot of its own, which includes what was counted until a moment ago. */
const takeBack = [
  `DELETE FROM number_statistics WHERE hour >= ${thisHour}`,
  `DELETE FROM carrier_statistics WHERE hour >= ${thisHour}`,
  `DELETE FROM reception_statistics WHERE hour >= ${thisHour}`,
  `UPDATE statistics_gap SET ends_at = ${thisHour} WHERE ends_at > ${thisHour} AND begins_at < ${thisHour}`,
  `DELETE FROM statistics_gap WHERE begins_at >= ${thisHour}`,
  // If the clock was a day ahead, the records of this hour's creations may be gone: their span becomes a gap, which needs no
  // records.
  `INSERT INTO statistics_gap (begins_at, ends_at, done_up_to)
   SELECT ${thisHour}, least(counted_until, ${youngestSettled}), ${lowestIdAt(`${thisHour} - ${maxClockSkew}`)}
   FROM statistics_progress WHERE ${withoutRecords}`,
  `UPDATE statistics_progress SET
     counted_until = least(counted_until, CASE WHEN ${withoutRecords} THEN ${youngestSettled} ELSE ${thisHour} END)`,
];

async function countAgain(database: Database): Promise<void> {
  await inTransaction(database, async (client) => {
    const { rows } = await client.query<{ free: boolean }>(holdCounting);
    if (!rows[0]?.free) return null;
    for (const statement of takeBack) await client.query(statement);
    return true;
  });
}

export function createStatisticsCounting(
  database: Database,
  options: {
    /**
     * The position is ahead of the clock, which has been set back. Called before the position goes back with it, and again if
     * it rejects: so everything else that must be corrected then is.
     */
    readonly onClockSetBack?: () => Promise<void>;
  } = {},
): StatisticsCounting {
  return {
    async count() {
      const settled = await commitHorizon(database);
      let more = false;
      let isAhead = false;
      for (const statement of [creationsStatement, transitionsStatement, gapStatement]) {
        const [row] = await runStatement(database, statement, [settled]);
        more = row?.[0] === true || more;
        isAhead = row?.[1] === true || isAhead;
      }
      if (isAhead) {
        await options.onClockSetBack?.();
        await countAgain(database);
      }
      return more || isAhead;
    },
  };
}
