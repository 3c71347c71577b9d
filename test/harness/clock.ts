/**
 * Lets tests control the time. A service whose connections have the schema `clock` before pg_catalog in their search path gets
 * the time from it, wherever its SQL calls `now()` and similar functions unqualified, including prepared statements. Column
 * defaults keep the real time.
 */
import type pg from "pg";

const clockSchema = `
  CREATE SCHEMA clock;
  CREATE TABLE clock.setting (ahead interval NOT NULL, stands_at timestamptz);
  INSERT INTO clock.setting VALUES ('0', NULL);
  ${["now", "transaction_timestamp", "statement_timestamp", "clock_timestamp"]
    .map(
      (name) => `
        CREATE FUNCTION clock.${name}() RETURNS timestamptz LANGUAGE sql STABLE AS
        'SELECT coalesce(stands_at, pg_catalog.${name}() + ahead) FROM clock.setting';`,
    )
    .join("")}`;

/** Adds the clock to the suite's database. It shows the real time until it is moved. */
export async function installClock(db: pg.Pool): Promise<void> {
  await db.query(clockSchema);
}

/** The DATABASE_URL for a service that uses the clock. */
export function byTheClock(databaseUrl: string): string {
  const url = new URL(databaseUrl);
  url.searchParams.set("options", "-c search_path=clock,pg_catalog,public");
  return url.href;
}

/** Moves the time of all services on the clock at once; a stopped clock moves to another instant. */
export async function moveClock(db: pg.Pool, milliseconds: number): Promise<void> {
  await db.query(
    `UPDATE clock.setting SET
       ahead = ahead + make_interval(secs => $1::float8 / 1000),
       stands_at = stands_at + make_interval(secs => $1::float8 / 1000)`,
    [milliseconds],
  );
}

/** Stops the clock at an instant; null: it runs again. */
export async function stopClock(db: pg.Pool, at: string | Date | null): Promise<void> {
  await db.query("UPDATE clock.setting SET stands_at = $1", [at]);
}

/** Returns to the real time. */
export async function resetClock(db: pg.Pool): Promise<void> {
  await db.query("UPDATE clock.setting SET stands_at = NULL, ahead = '0'");
}

/**
 * As if a worker had run all the time, however far the clock has been moved: retention does not wait. `now` is SQL for the time by
 * the service's clock.
 */
export async function clockIsSteady(db: pg.Pool, now = "clock.now()"): Promise<void> {
  await db.query(
    `INSERT INTO retention_clock (seen_at) VALUES (date_trunc('milliseconds', ${now}))
     ON CONFLICT (id) DO UPDATE SET seen_at = excluded.seen_at, jumped_from = NULL, jumped_to = NULL`,
  );
}
