import type { ReceptionStore } from "../core/find-silences.ts";
import type { Environment } from "../core/project.ts";
import { daysOfPast, hourMs, pastMs, type ReceptionRow, tellingCount } from "../core/silence.ts";
import type { CountedHour, CountedName, StatisticsStore } from "../core/statistics.ts";
import { plainArray } from "./array-literal.ts";
import { createConcurrencyLimit } from "./concurrency-limit.ts";
import { type Database, runStatement } from "./database.ts";
import { epochMs } from "./verification-row.ts";

const thisHour = "date_trunc('hour', now(), 'UTC')";
/** The first hour of the past by which silence is judged: whole hours are read, and of the first one only a part counts. */
const firstOfPast = `date_trunc('hour', counted_until - make_interval(secs => ${pastMs / 1000}), 'UTC')`;
/**
 * Packs an hour into one text, since the driver's cost is per column and row. Of the buckets only the range that is not empty:
 * formatting numbers takes longer than everything else.
 */
function packed(row: string, ...counts: readonly string[]): string {
  return `concat_ws(' ', date_part('epoch', ${row}.hour)::int8, ${counts.join(", ")},
    coalesce(${epochMs(`${row}.last_verified_at`)}::int8, 0), coalesce(${row}.fastest_bucket, 0),
    CASE WHEN ${row}.hour >= since AND ${row}.hour < until
      THEN array_to_string(${row}.times_to_verify[${row}.fastest_bucket + 1:${row}.slowest_bucket + 1], ' ') END)`;
}

/**
 * A project's hours, and those of the days by which silence is judged. One statement, so that the counts match the
 * `counted_until` that it returns. The first row is the span; each other row holds all hours of a number or carrier.
 */
const hoursStatement = {
  name: "statistics_hours",
  text: `
WITH asked AS MATERIALIZED (
  SELECT first, least(
    $5::int + 1,
    CASE WHEN $4::int > 0 THEN $4::int ELSE greatest(1, extract(epoch FROM ${thisHour} - first) / 3600 + 1) END
  )::int AS hours
  FROM (
    SELECT coalesce(
      date_trunc('hour', to_timestamp($3::float8 / 1000), 'UTC'),
      ${thisHour} - make_interval(hours => CASE WHEN $4::int > 0 THEN $4::int ELSE 24 END - 1)
    ) AS first
  ) f
),
span AS MATERIALIZED (
  SELECT first AS since, first + make_interval(hours => hours) AS until, p.counted_until, ${firstOfPast} AS past
  FROM asked, (SELECT min(counted_until) AS counted_until FROM statistics_progress) p
)
SELECT '', '', '', concat_ws(' ', ${epochMs("since")}, ${epochMs("until")}, ${epochMs("counted_until")}, ${epochMs("now()")},
  EXISTS (SELECT FROM statistics_gap)::int)
FROM span
UNION ALL
SELECT 'number', n.environment::text, n.destination,
  string_agg(${packed("n", "n.created", "n.verified", "n.expired", "n.cancelled")}, ';')
FROM span, number_statistics n
WHERE n.project_id = $1::uuid AND n.environment = ANY ($2::environment[])
  AND n.hour >= (SELECT least(since, past) FROM span) AND (n.hour < until OR n.hour >= past)
GROUP BY 2, 3
UNION ALL
SELECT 'carrier', c.environment::text, c.carrier, string_agg(${packed("c", "0", "c.verified", "0", "0")}, ';')
FROM span, carrier_statistics c
WHERE c.project_id = $1::uuid AND c.environment = ANY ($2::environment[])
  AND c.hour >= (SELECT least(since, past) FROM span) AND (c.hour < until OR c.hour >= past)
GROUP BY 2, 3`,
};

/** Numbers judged at once: if more may be silent, the numbers are not the cause. */
const maxSuspects = 1_000;

/**
 * Only those numbers are returned hour by hour that may be silent; the others together, as a number without a name, since
 * carriers are judged by all creations. Of ten thousand numbers the process would otherwise read two million rows. More
 * messages cannot be expected than a number's best hour would have brought in all the time since its last one, nor on average
 * more than a day's share of its whole past, and none at all if nothing was created in a later hour: at night, or after a
 * campaign, thousands of numbers are merely not needed. The comparison with `suspect` is no join: planned while there are few
 * numbers, that would compare every row with every suspect.
 */
const receptionsStatement = {
  name: "statistics_receptions",
  text: `
WITH p AS MATERIALIZED (
  SELECT counted_until, ${firstOfPast} AS past FROM (SELECT min(counted_until) AS counted_until FROM statistics_progress) p
),
suspect AS MATERIALIZED (
  SELECT s.environment, s.name
  FROM (
    SELECT r.environment, r.name, sum(r.verified) AS verified,
      max(r.verified) * date_part('epoch', (SELECT counted_until FROM p) - max(r.last_verified_at)) AS most,
      max(r.hour) FILTER (WHERE r.created > 0) >= max(r.last_verified_at) AS needed
    FROM reception_statistics r
    WHERE r.environment = ANY (enum_range(NULL::environment)) AND r.hour >= (SELECT past FROM p) AND r.kind = 'number'
    GROUP BY r.environment, r.name
  ) s
  CROSS JOIN LATERAL (SELECT FROM destination_number WHERE number = s.name AND removed_at IS NULL OFFSET 0) in_use
  WHERE s.needed AND s.verified > ${daysOfPast * tellingCount} AND s.most > ${(tellingCount * hourMs) / 1000}
  ORDER BY s.most DESC LIMIT ${maxSuspects}
)
SELECT '', '', '', ${epochMs("counted_until")}, 0, 0, NULL::float8 FROM p
UNION ALL
SELECT 'in use', '', name, 0, 0, 0, NULL FROM suspect
UNION ALL
SELECT r.kind::text, r.environment::text, r.name, ${epochMs("r.hour")}, sum(r.created)::float8, sum(r.verified)::float8,
  ${epochMs("max(r.last_verified_at)")}
FROM (
  SELECT environment, hour, kind, created, verified, last_verified_at,
    CASE WHEN kind = 'carrier' OR (environment, name) IN (SELECT environment, name FROM suspect) THEN name ELSE '' END AS name
  FROM reception_statistics
  WHERE environment = ANY (enum_range(NULL::environment)) AND hour >= (SELECT past FROM p)
) r
GROUP BY r.environment, r.hour, r.kind, r.name`,
};

export function createStatisticsStore(database: Database): StatisticsStore {
  const reading = createConcurrencyLimit(database);
  return {
    async read({ projectId, environments, since, hours, maxHours }) {
      const values = [projectId, plainArray(environments), since, hours, maxHours];
      const [span, ...rows] = await reading(projectId, () => runStatement(database, hoursStatement, values));
      const [first = 0, until = 0, countedUntil = 0, now = 0, incomplete] = instantsIn(span?.[3] as string);
      return {
        since: first,
        until,
        countedUntil,
        now,
        incomplete: incomplete === 1,
        names: rows.map(countedNameOf),
      };
    },
  };
}

function countedNameOf([kind, environment, name, hours]: readonly unknown[]): CountedName {
  return { kind, environment, name, hours: () => hoursIn(hours as string) } as CountedName;
}

/** Unpacks one hour at a time: a month of many numbers would take hundreds of megabytes. */
function* hoursIn(packedHours: string): Generator<CountedHour> {
  for (let start = 0; start < packedHours.length; ) {
    const end = packedHours.indexOf(";", start);
    const text = packedHours.slice(start, end === -1 ? undefined : end);
    start += text.length + 1;
    const [
      hour = 0,
      created = 0,
      verified = 0,
      expired = 0,
      cancelled = 0,
      last = 0,
      firstBucket = 0,
      ...times
    ] = numbersIn(text);
    yield {
      hour: hour * 1000,
      created,
      verified,
      expired,
      cancelled,
      firstBucket,
      times,
      lastVerifiedAt: last === 0 ? null : last,
    };
  }
}

/** Instants, unlike counts, can be negative: those before 1970. */
function instantsIn(text: string): number[] {
  return text.split(" ").map(Number);
}

/** Parses `1700000000 12 0`. By hand, for speed: a month has a hundred thousand of these. */
function numbersIn(text: string): number[] {
  const numbers: number[] = [];
  let number = 0;
  for (let index = 0; index < text.length; index++) {
    const digit = text.charCodeAt(index) - zero;
    if (digit >= 0) number = number * 10 + digit;
    else {
      numbers.push(number);
      number = 0;
    }
  }
  numbers.push(number);
  return numbers;
}

/** A space has a lower code than any digit. */
const zero = "0".charCodeAt(0);

export function createReceptionStore(database: Database): ReceptionStore {
  return {
    async read() {
      const [first, ...rows] = await runStatement(database, receptionsStatement, []);
      const numbers = rows.filter(([kind]) => kind === "in use");
      return {
        countedUntil: first?.[3] as number,
        rows: rows.filter(([kind]) => kind !== "in use").map(receptionRowOf),
        inUse: new Set(numbers.map(([, , number]) => number as string)),
      };
    },
  };
}

function receptionRowOf(row: readonly unknown[]): ReceptionRow & { readonly environment: Environment } {
  const [kind, environment, name, hour, created, verified, lastVerifiedAt] = row;
  return {
    kind,
    environment,
    name,
    hour,
    created,
    verified,
    lastVerifiedAt,
  } as ReceptionRow & { readonly environment: Environment };
}
