import { afterAll, expect, onTestFinished, test } from "vitest";
import { openDatabase, runStatement, type Statements } from "../../src/storage/database.ts";
import { isDatabaseUnavailable } from "../../src/storage/database-errors.ts";
import { PooledClient } from "../../src/storage/pooled-client.ts";
import { blockFor } from "../harness/blocking.ts";
import { createDatabase } from "../harness/database.ts";
import { untilWaiting } from "../service/barrier.ts";

const own = await createDatabase();
afterAll(() => own.drop());

function open(options: { readonly poolSize: number; readonly preparedStatements?: boolean }) {
  const database = openDatabase(own.connection, { ...options, onError() {} });
  onTestFinished(() => database.close());
  return database;
}

const number = {
  name: "number",
  text: "SELECT $1::int, pg_backend_pid(), extract(epoch FROM clock_timestamp())::float8 * 1000",
};
const slow = {
  name: "slow",
  text: "SELECT 0, pg_backend_pid(), extract(epoch FROM clock_timestamp())::float8 * 1000 FROM pg_sleep(0.1)",
};
const refused = { name: "refused", text: "SELECT 1 / $1::int" };

test("statements of a pipeline run in order on one connection, each in a transaction of its own", async () => {
  const lane = open({ poolSize: 4 }).openPipeline();
  expect(lane.isPipelined).toBe(true);
  const answers = await Promise.allSettled([
    runStatement(lane, slow, []),
    runStatement(lane, refused, [0]),
    runStatement(lane, number, [1]),
    runStatement(lane, number, [2]),
  ]);
  expect(answers.map(({ status }) => status)).toEqual(["fulfilled", "rejected", "fulfilled", "fulfilled"]);
  const rows = answers.flatMap((answer) => (answer.status === "fulfilled" ? answer.value : []));
  expect(rows.map(([value]) => value)).toEqual([0, 1, 2]);
  expect(new Set(rows.map(([, backend]) => backend)).size).toBe(1);
  // A statement refused for its data leaves the connection to those that follow.
  const [[, backend] = []] = await runStatement(lane, number, [3]);
  expect(backend).toBe(rows[0]?.[1]);
});

test("a second statement reaches the server before the first is answered", async () => {
  const lane = open({ poolSize: 2 }).openPipeline();
  await runStatement(lane, number, [0]);
  // Both are done while this process is busy: the second does not wait for it. Repeated with more time if the
  // database is slow.
  for (let [busyMs, done] = [300, false]; !done; busyMs *= 2) {
    const results = Promise.all([runStatement(lane, slow, []), runStatement(lane, number, [1])]);
    await new Promise((resolve) => setImmediate(resolve));
    blockFor(busyMs);
    const busyUntil = Date.now();
    const [, [[, , at] = []]] = await results;
    done = Number(at) < busyUntil;
  }
});

test("an answer is due from when the one before it came, not from when its connection was idle last", async () => {
  const client = new PooledClient(own.connection);
  await client.connect();
  onTestFinished(() => client.end());
  expect(client.askedAt).toBeUndefined();
  const first = client.query(slow.text);
  const askedAt = client.askedAt ?? 0;
  const second = client.query(slow.text);
  expect(client.askedAt).toBe(askedAt);
  await first;
  expect(client.askedAt).toBeGreaterThan(askedAt);
  await second;
  expect(client.askedAt).toBeUndefined();
});

test("a statement that the database cannot answer fails those behind it, and the next one gets another connection", async () => {
  const database = open({ poolSize: 4 });
  const lane = database.openPipeline();
  const [[, backend] = []] = await runStatement(lane, number, [0]);
  const ended = { name: "ended", text: "SELECT pg_terminate_backend(pg_backend_pid())" };
  const cancelled = { name: "cancelled", text: "SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(5)" };
  for (const statement of [ended, cancelled]) {
    const results = await Promise.all(
      [statement, slow, slow].map((one) =>
        runStatement(lane, one, []).then(
          () => "answered",
          (error: unknown) => isDatabaseUnavailable(error),
        ),
      ),
    );
    expect(results).toEqual([true, true, true]);
    const [[value, other] = []] = await runStatement(lane, number, [7]);
    expect(value).toBe(7);
    expect(other).not.toBe(backend);
  }
  // No connection is lost for other callers.
  await Promise.all([1, 2, 3, 4].map(() => runStatement(database, slow, [])));
  expect(database.pool.totalCount).toBe(4);
  expect(database.pool.idleCount).toBe(4);
});

test("a statement whose preparation failed with the one before it gets service_unavailable, however late it is read", async () => {
  const database = open({ poolSize: 3 });
  const lane = database.openPipeline();
  const holder = await database.pool.connect();
  onTestFinished(() => holder.release(true));
  await holder.query("CREATE TABLE held (number int)");
  await holder.query("BEGIN");
  await holder.query("LOCK TABLE held");
  // The first one waits for the table before it is prepared.
  const held = { name: "held", text: "SELECT number FROM held" };
  const results = Promise.allSettled([runStatement(lane, held, []), runStatement(lane, held, [])]);
  await untilWaiting(database.pool, 1);
  const cancelled = database.pool.query(
    "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
  );
  await new Promise((resolve) => setImmediate(resolve));
  // Both errors have arrived when this process reads the first.
  blockFor(500);
  await cancelled;
  for (const one of await results) {
    expect(one).toMatchObject({ status: "rejected", reason: { code: "service_unavailable" } });
  }
});

test("a pipeline that is never idle gives its connection up to callers that wait for one", async () => {
  const database = open({ poolSize: 1 });
  const lane = database.openPipeline();
  let isDone = false;
  // Each starts its next statement while the other's is in flight.
  const busy = [1, 2].map(async () => {
    while (!isDone) await runStatement(lane, slow, []);
  });
  for (const value of [1, 2, 3]) {
    expect((await runStatement(database, number, [value]))[0]?.[0]).toBe(value);
  }
  isDone = true;
  await Promise.all(busy);
});

test("a pipeline keeps its connection if the next caller can have an idle one", async () => {
  const database = open({ poolSize: 3 });
  const lane = database.openPipeline();
  const backendOf = async (on: Statements) => (await runStatement(on, slow, []))[0]?.[1];
  await Promise.all([1, 2, 3].map(() => backendOf(database)));
  const first = backendOf(lane);
  await new Promise((resolve) => setImmediate(resolve));
  const other = backendOf(database);
  expect(await backendOf(lane)).toBe(await first);
  expect(await other).not.toBe(await first);
});

test("behind a pooler each statement of a pipeline takes a connection like any other", async () => {
  const lane = open({ poolSize: 1, preparedStatements: false }).openPipeline();
  expect(lane.isPipelined).toBe(false);
  const values = [1, 2, 3];
  const answers = await Promise.all(values.map((value) => runStatement(lane, number, [value])));
  expect(answers.map(([row]) => row?.[0])).toEqual(values);
});

test("a pipeline without a connection fails each statement, and works once it can have one", async () => {
  const nowhere = { ...own.connection, database: "nowhere" };
  const database = openDatabase(nowhere, { poolSize: 1, onError() {} });
  onTestFinished(() => database.close());
  const lane = database.openPipeline();
  for (const _ of [1, 2]) {
    const results = await Promise.allSettled([1, 2].map((value) => runStatement(lane, number, [value])));
    for (const one of results)
      expect(one).toMatchObject({ status: "rejected", reason: { code: "service_unavailable" } });
  }
  nowhere.database = own.connection.database ?? "";
  database.pool.options.database = nowhere.database;
  expect((await runStatement(lane, number, [5]))[0]?.[0]).toBe(5);
});
