/** What the search for silent numbers reads of the hourly counts. */
import { expect, test } from "vitest";
import { findSilences } from "../../src/core/find-silences.ts";
import { type ReceptionRow, silencesIn } from "../../src/core/silence.ts";
import { createReceptionStore } from "../../src/storage/statistics.ts";
import { openOwnDatabase } from "../harness/database.ts";

const numbers = 200;
const hours = 8 * 24;

/**
 * Eight days of numbers from one message an hour up to ten, twice as many by day, all of them within the same hours: a tenth was
 * last heard of up to two days ago, the others just now. Every seventh number has been removed.
 */
const receptions = `
WITH counted AS (UPDATE statistics_progress SET counted_until = date_trunc('hour', now(), 'UTC') + interval '20 minutes'),
hour AS MATERIALIZED (
  SELECT back, date_trunc('hour', now(), 'UTC') - make_interval(hours => back) AS at FROM generate_series(0, ${hours}) AS back
),
number AS MATERIALIZED (
  SELECT n, '02' || lpad(n::text, 6, '0') AS name, CASE WHEN n % 10 = 0 THEN n / 4 ELSE 0 END AS silent_for
  FROM generate_series(1, ${numbers}) AS n
),
known AS (
  INSERT INTO destination_number (id, number, environment, removed_at)
  SELECT uuidv7(), name, 'live', CASE WHEN n % 7 = 0 THEN now() END FROM number
),
carriers AS (
  INSERT INTO reception_statistics (environment, hour, kind, name, created, verified, last_verified_at)
  SELECT 'live', at, 'carrier', name, 0, 100, at + interval '10 minutes' FROM hour, (VALUES ('SKT', 0), ('KT', 5), ('', 30)) AS c (name, since)
  WHERE back >= since
)
INSERT INTO reception_statistics (environment, hour, kind, name, created, verified, last_verified_at)
SELECT 'live', at, 'number', name, 20, verified, CASE WHEN verified > 0 THEN at + interval '10 minutes' END
FROM hour CROSS JOIN number
CROSS JOIN LATERAL (
  SELECT CASE WHEN back >= silent_for THEN (n % 10 + 1 + n / 40) * (1 + back / 12 % 2) ELSE 0 END AS verified
) v`;

/** A store that has planned its statement on empty tables. */
async function openStore() {
  const { database, db } = await openOwnDatabase();
  const store = createReceptionStore(database);
  await store.read();
  return { store, db };
}

test("silences are found without reading every number's hours", async () => {
  const { store, db } = await openStore();
  await db.query(receptions);

  const { countedUntil, rows } = await store.read();
  const all = await db.query<ReceptionRow>(`
    SELECT kind, name, created, verified, (extract(epoch FROM hour) * 1000)::float8 AS hour,
      (extract(epoch FROM last_verified_at) * 1000)::float8 AS "lastVerifiedAt" FROM reception_statistics`);
  const used = await db.query("SELECT number FROM destination_number WHERE removed_at IS NULL");
  const inUse = new Set(used.rows.map(({ number }) => number));
  const byName = (one: { name: string }, other: { name: string }) => (one.name < other.name ? -1 : 1);
  const expected = silencesIn(all.rows, countedUntil, (number) => inUse.has(number)).sort(byName);
  expect(expected.filter(({ kind }) => kind === "carrier")).toMatchObject([{ name: "KT" }]);
  expect(expected.length).toBeGreaterThan(5);

  const { silent } = await findSilences({ receptions: store })();
  expect(silent.toSorted(byName)).toEqual(expected.map((found) => ({ ...found, environment: "live" })));
  const named = new Set(rows.filter(({ kind }) => kind === "number").map(({ name }) => name));
  expect(named.size).toBeLessThan(numbers / 5);
  expect(rows.length).toBeLessThan(all.rows.length / 4);
});

test("if thousands of numbers go silent at once, those are read that lack the most", async () => {
  const { store, db } = await openStore();
  await db.query(`
    WITH counted AS (UPDATE statistics_progress SET counted_until = date_trunc('hour', now(), 'UTC')),
    number AS MATERIALIZED (SELECT n, '02' || lpad(n::text, 6, '0') AS name FROM generate_series(1, 1200) AS n),
    known AS (INSERT INTO destination_number (id, number, environment) SELECT uuidv7(), name, 'live' FROM number)
    INSERT INTO reception_statistics (environment, hour, kind, name, created, verified, last_verified_at)
    SELECT 'live', at, 'number', name, 500, CASE WHEN back = 5 THEN 200 + n ELSE 0 END, CASE WHEN back = 5 THEN at + interval '10 minutes' END
    FROM number, (VALUES (1), (5)) AS ago (back),
    LATERAL (SELECT date_trunc('hour', now(), 'UTC') - make_interval(hours => back) AS at) a`);
  const { rows, inUse } = await store.read();
  expect(inUse.size).toBe(1_000);
  expect(inUse).toContain("02001200");
  expect(inUse).not.toContain("02000200");
  expect(rows).toHaveLength(2_002);
});

test("a silent number is found beside thousands of others that nothing was created on since", async () => {
  const { store, db } = await openStore();
  await db.query(`
    WITH counted AS (UPDATE statistics_progress SET counted_until = date_trunc('hour', now(), 'UTC')),
    number AS MATERIALIZED (SELECT n, '02' || lpad(n::text, 6, '0') AS name FROM generate_series(0, 1200) AS n),
    known AS (INSERT INTO destination_number (id, number, environment) SELECT uuidv7(), name, 'live' FROM number)
    INSERT INTO reception_statistics (environment, hour, kind, name, created, verified, last_verified_at)
    SELECT 'live', at, 'number', name, 10, verified, CASE WHEN verified > 0 THEN at + interval '10 minutes' END
    FROM generate_series(0, ${hours}) AS back,
    LATERAL (SELECT date_trunc('hour', now(), 'UTC') - make_interval(hours => back) AS at) a,
    LATERAL (
      SELECT name, CASE WHEN back > 10 THEN 8 ELSE 0 END AS verified FROM number WHERE n = 0
      UNION ALL
      SELECT name, 500 FROM number WHERE n > 0 AND back = 80
    ) v`);
  expect((await findSilences({ receptions: store })()).silent).toMatchObject([{ name: "02000000" }]);
});

test("a number is not silent for lack of what has been verified and is not counted yet", async () => {
  const { store, db } = await openStore();
  await db.query(`
    WITH hour AS MATERIALIZED (
      SELECT back, date_trunc('hour', now(), 'UTC') - make_interval(hours => back) AS at FROM generate_series(1, ${hours}) AS back
    ),
    counted AS (
      UPDATE statistics_progress SET counted_until = (
        SELECT at + interval '11 minutes' FROM hour WHERE back = CASE task WHEN 'creations' THEN 1 ELSE 11 END
      )
    ),
    known AS (INSERT INTO destination_number (id, number, environment) SELECT uuidv7(), '02000000', 'live')
    INSERT INTO reception_statistics (environment, hour, kind, name, created, verified, last_verified_at)
    SELECT 'live', at, 'number', '02000000', 10, CASE WHEN back > 10 THEN 8 ELSE 0 END,
      CASE WHEN back > 10 THEN at + interval '10 minutes' END
    FROM hour`);
  expect((await findSilences({ receptions: store })()).silent).toEqual([]);
});
