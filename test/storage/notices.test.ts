import pg from "pg";
import { expect, onTestFinished, test, vi } from "vitest";
import { createNotices } from "../../src/storage/notices.ts";
import { startCuttableProxy } from "../harness/cuttable-proxy.ts";
import { createDatabase, openPool } from "../harness/database.ts";
import { suppressTimers } from "../harness/timers.ts";

test("a connection that is silent is asked once, however long that lasts", async () => {
  const own = await createDatabase();
  const proxy = await startCuttableProxy(own.url);
  const administrator = new pg.Client({ ...own.connection, database: "postgres" });
  await administrator.connect();
  const errors: unknown[] = [];
  const notices = createNotices(
    { connectionString: proxy.databaseUrl },
    {
      onTransition() {},
      onHint() {},
      onDirectoryChange() {},
      onGap() {},
      onError: (error) => errors.push((error as Error).message),
    },
  );
  onTestFinished(async () => {
    await notices.stop();
    await administrator.end();
    await own.drop();
  });
  const isAsked = proxy.holdAnswerTo("SELECT 1");
  await notices.start();
  await isAsked;
  // So that no other connection takes its place.
  await administrator.query(`ALTER DATABASE ${own.connection.database} ALLOW_CONNECTIONS false`);
  const silent = () => errors.filter((message) => message === "the database does not answer on it").length;
  await vi.waitUntil(() => silent() === 3, { timeout: 45_000, interval: 5 });
  const restoredAt = performance.now();
  proxy.restore();
  await vi.waitUntil(() => proxy.timesSent("SELECT 1") === 3, { timeout: 45_000, interval: 5 });
  // Each is sent half a second after the answer to the one before.
  expect(performance.now() - restoredAt).toBeGreaterThan(490);
});

test("connections that open and are lost before a probe follow each other ever more slowly", async () => {
  const own = await createDatabase();
  const pool = openPool({ ...own.connection, max: 1 });
  const listenersOf =
    "FROM pg_stat_activity WHERE application_name = 'phoneproof-notices' AND datname = current_database()";
  const ended: number[] = [];
  /** Returns a time before it. */
  const lose = async () => {
    const before = performance.now();
    // The one before may still be ending.
    const { rows } = await pool.query(
      `SELECT pid, pg_terminate_backend(pid) ${listenersOf} AND pid <> ALL ($1)`,
      [ended],
    );
    expect(rows).toHaveLength(1);
    ended.push(rows[0].pid);
    return before;
  };
  let opened = Promise.withResolvers<number>();
  const notices = createNotices(own.connection, {
    onTransition() {},
    onHint() {},
    onDirectoryChange() {},
    onGap: () => opened.resolve(performance.now()),
    onError() {},
  });
  onTestFinished(async () => {
    await notices.stop();
    await own.drop();
  });
  // On a slow machine, too, no probe is answered before the last of these connections.
  suppressTimers(500);
  await notices.start();
  const waits: number[] = [];
  for (let lost = 0; lost < 4; lost++) {
    if (lost === 3) vi.mocked(globalThis.setTimeout).mockRestore();
    opened = Promise.withResolvers();
    const lostAt = await lose();
    waits.push((await opened.promise) - lostAt);
  }
  expect(waits[2]).toBeGreaterThan(350);
  expect(waits[3]).toBeGreaterThan(750);
  // The second probe is sent once the first has been answered.
  const probes = new Set<string>();
  await vi.waitUntil(
    async () => {
      const { rows } = await pool.query(
        `SELECT query_start::text AS at ${listenersOf} AND query = 'SELECT 1'`,
      );
      for (const { at } of rows) probes.add(at);
      return probes.size === 2;
    },
    { timeout: 45_000, interval: 20 },
  );
  const timers = vi.spyOn(globalThis, "setTimeout");
  onTestFinished(() => timers.mockRestore());
  opened = Promise.withResolvers();
  await lose();
  await opened.promise;
  expect(timers.mock.calls.map(([, delayMs]) => delayMs)).toContain(100);
});

test("a silent connection that has been replaced is closed, since every notice would arrive twice", async () => {
  const own = await createDatabase();
  const pool = openPool({ ...own.connection, max: 1 });
  const proxy = await startCuttableProxy(own.url);
  const replaced = Promise.withResolvers<void>();
  const notices = createNotices(
    { connectionString: proxy.databaseUrl },
    {
      onTransition() {},
      onHint() {},
      onDirectoryChange() {},
      onGap: replaced.resolve,
      onError() {},
    },
  );
  onTestFinished(async () => {
    await notices.stop();
    await pool.end();
    await own.drop();
  });
  const isAsked = proxy.holdAnswerTo("SELECT 1");
  await notices.start();
  await isAsked;
  await replaced.promise;
  proxy.restore();
  const listeners =
    "SELECT FROM pg_stat_activity WHERE application_name = 'phoneproof-notices' AND datname = current_database()";
  await vi.waitUntil(async () => (await pool.query(listeners)).rowCount === 1, {
    timeout: 45_000,
    interval: 20,
  });
});

test("a connection that opens after the stop is closed again", async () => {
  const own = await createDatabase();
  const pool = openPool({ ...own.connection, max: 1 });
  const proxy = await startCuttableProxy(own.url);
  const gaps: true[] = [];
  const notices = createNotices(
    { connectionString: proxy.databaseUrl },
    {
      onTransition() {},
      onHint() {},
      onDirectoryChange() {},
      onGap: () => gaps.push(true),
      onError() {},
    },
  );
  onTestFinished(async () => {
    await pool.end();
    await own.drop();
  });
  const listeners =
    "FROM pg_stat_activity WHERE application_name = 'phoneproof-notices' AND datname = current_database()";
  await notices.start();
  const isListening = proxy.holdAnswerTo("LISTEN");
  await pool.query(`SELECT pg_terminate_backend(pid, 60000) ${listeners}`);
  await isListening;
  await notices.stop();
  proxy.restore();
  await vi.waitUntil(async () => (await pool.query(`SELECT ${listeners}`)).rows.length === 0, {
    timeout: 45_000,
    interval: 20,
  });
  expect(gaps).toEqual([]);
});
