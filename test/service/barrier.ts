import type pg from "pg";
import { vi } from "vitest";

/** The contenders' results, in their order. */
type Told<Contenders extends readonly (() => Promise<unknown>)[]> = {
  -readonly [Index in keyof Contenders]: Awaited<ReturnType<Contenders[Index]>>;
};

const barrier = 4711;

/**
 * Makes a race happen every time, in the given order: each statement that is about to insert a row into the table
 * stops there, with all locks it has taken so far. A contender starts once those before it have stopped, and must
 * stop there too or wait for one of them. Then all continue at once. `which`: SQL on `NEW`, if not every row is to stop.
 */
export async function raceTo<const Contenders extends readonly (() => Promise<unknown>)[]>(
  db: pg.Pool,
  table: string,
  contenders: Contenders,
  which = "true",
): Promise<Told<Contenders>> {
  await db.query(`
    CREATE OR REPLACE FUNCTION stand_still() RETURNS trigger LANGUAGE plpgsql AS
      'BEGIN PERFORM pg_advisory_xact_lock_shared(${barrier}); RETURN NEW; END';
    CREATE TRIGGER stand_still BEFORE INSERT ON ${table} FOR EACH ROW WHEN (${which}) EXECUTE FUNCTION stand_still()`);
  const holder = await db.connect();
  const running: Promise<unknown>[] = [];
  try {
    await holder.query(`SELECT pg_advisory_lock(${barrier})`);
    for (const contender of contenders) {
      const started = contender();
      // Avoids an unhandled rejection if the wait below fails.
      started.catch(() => {});
      running.push(started);
      const endedEarly = started.then((result) => {
        throw new Error(`contender ${running.length} got ${JSON.stringify(result)} without waiting`);
      });
      await Promise.race([untilWaiting(db, running.length), endedEarly]);
    }
  } finally {
    holder.release(true);
    await Promise.allSettled(running);
    await db.query(`DROP TRIGGER stand_still ON ${table}`);
  }
  return (await Promise.all(running)) as Told<Contenders>;
}

/** Waits until at least `count` connections to this database wait for a lock. */
export async function untilWaiting(db: Pick<pg.ClientBase, "query"> | pg.Pool, count: number): Promise<void> {
  await vi.waitUntil(
    async () => {
      const { rows } = await db.query<{ waiting: number }>(
        `SELECT count(*)::int AS waiting FROM pg_stat_activity
         WHERE datname = current_database() AND backend_type = 'client backend' AND wait_event_type = 'Lock'`,
      );
      return (rows[0]?.waiting ?? 0) >= count;
    },
    { interval: 5, timeout: 45_000 },
  );
}
