import { setTimeout as delay } from "node:timers/promises";
import pg from "pg";
import { afterAll, describe, expect, onTestFinished, test, vi } from "vitest";
import { parseConfig } from "../../src/config.ts";
import { createLog } from "../../src/log/log.ts";
import { openLogOutput } from "../../src/log/log-output.ts";
import { runningTime } from "../../src/running-time.ts";
import { startService } from "../../src/service.ts";
import { watchConnections } from "../../src/storage/connection-watch.ts";
import { inTransaction, openDatabase, runStatement } from "../../src/storage/database.ts";
import { isDatabaseUnavailable } from "../../src/storage/database-errors.ts";
import { PooledClient, socketOf } from "../../src/storage/pooled-client.ts";
import { withPrisma } from "../../src/storage/prisma.ts";
import { startCuttableProxy } from "../harness/cuttable-proxy.ts";
import { createDatabase, setSessionDefaults, tcpSettings } from "../harness/database.ts";
import { shortenTimers } from "../harness/timers.ts";
import { untilWaiting } from "../service/barrier.ts";

const own = await createDatabase();
afterAll(() => own.drop());

const both = { connection: own.connection, asking: own.connection };
const statement = { name: "sum", text: "SELECT $1::int + $2::int" };

test.for([
  { preparedStatements: true, kept: ["sum", "schema"] },
  { preparedStatements: false, kept: [] },
])("with preparedStatements $preparedStatements a connection has prepared $kept", async ({
  preparedStatements,
  kept,
}) => {
  const database = openDatabase(own.connection, { poolSize: 1, preparedStatements, onError() {} });
  for (const term of [1, 2])
    expect(await runStatement(database, statement, [term, 40])).toEqual([[40 + term]]);
  const { prisma } = await withPrisma(database);
  expect(await prisma.project.count()).toBe(0);
  const { rows } = await database.pool.query<{ name: string }>("SELECT name FROM pg_prepared_statements");
  expect(rows.map(({ name }) => name)).toEqual(kept);
  await database.close();
});

test("a connection uses neither sequential scans nor JIT, but generic plans", async () => {
  const database = openDatabase(own.connection, { poolSize: 1, onError() {} });
  const { rows } = await database.pool.query(
    "SELECT current_setting('enable_seqscan') AS scan, current_setting('jit') AS jit, current_setting('plan_cache_mode') AS plan",
  );
  expect(rows).toEqual([{ scan: "off", jit: "off", plan: "force_generic_plan" }]);
  await database.close();
});

test("the server gives up sessions of a process that has vanished within a minute", async () => {
  const database = openDatabase(own.connection, { poolSize: 1, onError() {} });
  const { rows } = await database.pool.query(`SELECT ${tcpSettings}`);
  expect(rows).toEqual([{ unanswered: 45_000, silent: 45 }]);
  await database.close();
});

test("sessions use UTC, ISO dates, read committed and durable commits, whatever their defaults are", async () => {
  const other = await createDatabase();
  const settings = {
    timezone: "Asia/Seoul",
    datestyle: "German, DMY",
    default_transaction_isolation: "serializable",
    synchronous_commit: "off",
  };
  const names = Object.keys(settings);
  const look = `SELECT ${names.map((name) => `current_setting('${name}')`).join(", ")}`;
  const begun = async () => {
    const database = openDatabase(other.connection, { poolSize: 1, onError() {} });
    const { rows } = await database.pool.query({ text: look, rowMode: "array" });
    await database.close();
    return rows[0];
  };
  await setSessionDefaults(other.connection, settings);
  expect(await begun()).toEqual(["UTC", "ISO, YMD", "read committed", "on"]);
  // Durability beyond the local disk is the operator's choice.
  await setSessionDefaults(other.connection, { synchronous_commit: "remote_apply" });
  expect((await begun())?.[3]).toBe("remote_apply");
  await other.drop();
});

test.for([
  { name: "refused for its data", text: "SELECT 1 / $1::int", isKept: true },
  {
    name: "refused by a constraint",
    text: "INSERT INTO retention_progress VALUES ($1::int::text)",
    isKept: true,
  },
  // Every write after a failover: the next connection leads to the new primary.
  {
    name: "refused by a read-only server",
    text: `DO $$ BEGIN RAISE read_only_sql_transaction; END $$`,
    isKept: false,
  },
])("a connection whose statement was $name is kept: $isKept", async ({ text, isKept }) => {
  const database = openDatabase(own.connection, { poolSize: 1, onError() {} });
  const pid = async () =>
    (await runStatement(database, { name: "pid", text: "SELECT pg_backend_pid()" }, []))[0]?.[0];
  const first = await pid();
  await expect(
    runStatement(database, { name: "refused", text }, text.includes("$1") ? [0] : []),
  ).rejects.toThrow();
  expect((await pid()) === first).toBe(isKept);
  await database.close();
});

test.for([
  { name: "refuses the login", connection: { password: "another" } },
  { name: "does not have the database", connection: { database: "nowhere" } },
  { name: "cannot be found", connection: { host: "database.invalid" } },
  { name: "does not listen", connection: { host: "127.0.0.1", port: 1 } },
])("a server that $name counts as unavailable, and no statement is to blame", async ({ connection }) => {
  const database = openDatabase({ ...own.connection, ...connection }, { poolSize: 1, onError() {} });
  const error = await runStatement(database, statement, [1, 2]).catch((thrown: unknown) => thrown);
  expect(error).toMatchObject({ code: "service_unavailable" });
  expect(isDatabaseUnavailable(error)).toBe(true);
  const administered = await withPrisma(database).catch((thrown: unknown) => thrown);
  expect(administered).toMatchObject({ code: "service_unavailable" });
  await database.close();
});

test("the end of a connection between two statements of a transaction fails it, and is reported with the server's reason", async () => {
  const reported: unknown[] = [];
  const database = openDatabase(own.connection, {
    poolSize: 1,
    onError: (error) => reported.push((error as pg.DatabaseError).code),
  });
  const transaction = inTransaction(database, async (client) => {
    const ended = new Promise((resolve) => client.once("end", resolve));
    await client.query("SET idle_in_transaction_session_timeout = 1");
    await ended;
    return client.query("SELECT 1");
  });
  await expect(transaction).rejects.toMatchObject({ code: "service_unavailable" });
  expect(reported).toEqual(["25P03"]);
  expect(await runStatement(database, statement, [1, 40])).toEqual([[41]]);
  // That of an idle one is reported once, too.
  const other = openDatabase(own.connection, { poolSize: 1, onError() {} });
  const [idle] = await runStatement(database, { name: "pid", text: "SELECT pg_backend_pid()" }, []);
  await runStatement(other, { name: "end", text: "SELECT pg_terminate_backend($1)" }, [idle?.[0]]);
  await vi.waitUntil(() => reported.length > 1, { timeout: 45_000 });
  expect(reported).toEqual(["25P03", "57P01"]);
  await other.close();
  await database.close();
});

test("once a shutdown has failed a statement that was unanswered, none is sent any more, nor is a transaction begun", async () => {
  const database = openDatabase(own.connection, { poolSize: 2, onError() {} });
  const pipeline = database.openPipeline();
  const unanswered = runStatement(database, { name: "slow", text: "SELECT pg_sleep(60)" }, []);
  const refused = expect(unanswered).rejects.toMatchObject({ code: "service_unavailable" });
  const isAsked = async () => {
    const { rowCount } = await database.pool.query(
      "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep'",
    );
    return rowCount === 1;
  };
  await vi.waitUntil(isAsked, { timeout: 45_000 });
  database.endIfSilentFor(60_000);
  expect(await runStatement(pipeline, statement, [1, 40])).toEqual([[41]]);
  database.endIfSilentFor(0);
  await refused;
  const work = vi.fn(async () => null);
  for (const later of [
    runStatement(database, statement, [1, 40]),
    runStatement(pipeline, statement, [1, 40]),
    inTransaction(database, work),
  ])
    await expect(later).rejects.toMatchObject({ code: "service_unavailable" });
  expect(work).not.toHaveBeenCalled();
  await database.close();
});

interface WithParameters {
  readonly connectionParameters: { readonly application_name?: string };
}

/**
 * A pool of one connection, watched with a timeout of 4 s by a clock that stands still until the test moves it. `asking`: how the
 * server is asked what it is at work on.
 */
function watchedPool({ connection, asking }: Record<"connection" | "asking", pg.ClientConfig> = both) {
  let time = Math.ceil(runningTime.now());
  const clock = vi.spyOn(runningTime, "now").mockImplementation(() => time);
  onTestFinished(() => clock.mockRestore());
  const opened: PooledClient[] = [];
  const pool = new pg.Pool({
    ...connection,
    Client: PooledClient,
    max: 1,
    onConnect: async (given) => {
      const client = given as PooledClient;
      client.on("error", () => {});
      watch.keep(client);
      await watch.meet(client);
      opened.push(client);
    },
  });
  const givenUp: Error[] = [];
  const watch = watchConnections(pool, asking, {
    answerTimeoutMs: 4_000,
    onGivenUp: (error) => givenUp.push(error),
  });
  // A backend that waits for its client to read would hold up every DROP DATABASE.
  onTestFinished(() => {
    watch.stop();
    for (const client of opened) socketOf(client).destroy();
  });
  const queries = vi.spyOn(pg.Client.prototype, "query");
  onTestFinished(() => queries.mockRestore());
  const { mock } = queries;
  const checks = () =>
    mock.settledResults.filter(({ type }, index) => {
      const { connectionParameters } = mock.contexts[index] as unknown as WithParameters;
      return type === "fulfilled" && connectionParameters.application_name === "phoneproof-watch";
    }).length;
  return {
    pool,
    watch,
    givenUp,
    pass(milliseconds: number) {
      time += milliseconds;
    },
    /** Lets the time of the statement under way pass. */
    async timeOut() {
      await vi.waitUntil(() => opened.at(-1)?.askedAt !== undefined, { timeout: 45_000 });
      time += 4_000;
    },
    /** The server has been asked what it is at work on, and has answered: a look of an earlier test may only end now. Takes a second. */
    async untilChecked() {
      const before = checks();
      time += 1_000;
      await vi.waitUntil(() => checks() > before, { timeout: 45_000 });
    },
  };
}

test("a statement that gets no answer in time ends its connection, and the next one gets another", async () => {
  const { pool, watch, givenUp, timeOut } = watchedPool();
  const ask = (text: string) => pool.query<{ pid: number }>(text).then(({ rows }) => rows[0]?.pid);
  const first = await ask("SELECT pg_backend_pid() AS pid");
  const unanswered = ask("SELECT 0 AS pid FROM pg_sleep(60)").catch((thrown: unknown) => thrown);
  await timeOut();
  const error = await unanswered;
  expect(error).toMatchObject({ code: "ETIMEDOUT", message: "a statement was not answered in time" });
  expect(isDatabaseUnavailable(error)).toBe(true);
  expect(givenUp).toEqual([error]);
  expect(await ask("SELECT pg_backend_pid() AS pid")).not.toBe(first);
  // A refused statement has been answered, and so has one that was never sent.
  await expect(ask("SELECT 1 / 0 AS pid")).rejects.toThrow("division by zero");
  await expect(pool.query(null as unknown as string)).rejects.toThrow("null or undefined query");
  expect(await ask("SELECT 1 AS pid")).toBe(1);
  expect(givenUp).toHaveLength(1);
  // The time of a statement behind another begins with the other's answer.
  const client = await pool.connect();
  const quick = client.query("SELECT 1 AS pid");
  const slow = client.query("SELECT 0 AS pid FROM pg_sleep(60)").catch((thrown: unknown) => thrown);
  expect((await quick).rows).toEqual([{ pid: 1 }]);
  await timeOut();
  expect(await slow).toMatchObject({ code: "ETIMEDOUT" });
  client.release(true);
  expect(givenUp).toHaveLength(2);
  watch.stop();
  await pool.end();
});

/** `state`: SQL on the backend's row of pg_stat_activity. */
async function untilBackend({ backend }: PooledClient, state: string): Promise<void> {
  const looking = new pg.Client(own.connection);
  await looking.connect();
  const isThere = async () => {
    const { rowCount } = await looking.query(`SELECT FROM pg_stat_activity WHERE pid = $1 AND ${state}`, [
      backend,
    ]);
    return rowCount === 1;
  };
  await vi.waitUntil(isThere, { timeout: 45_000 });
  await looking.end();
}

test("a connection over which an answer does not arrive that the server has begun to send is ended in time, too", async () => {
  const { pool, watch, timeOut, untilChecked } = watchedPool();
  const client = (await pool.connect()) as pg.PoolClient & PooledClient;
  socketOf(client).pause();
  const refused = expect(client.query("SELECT repeat('x', 50000000)")).rejects.toMatchObject({
    code: "ETIMEDOUT",
    message: "a statement was not answered in time",
  });
  await untilBackend(client, "wait_event = 'ClientWrite'");
  await untilChecked();
  await timeOut();
  await refused;
  client.release(true);
  expect(pool.totalCount).toBe(0);
  watch.stop();
  await pool.end();
});

test("a connection whose statement the server is not at work on is not given up before the server has said so twice", async () => {
  const [proxy, other] = [await startCuttableProxy(own.url), await startCuttableProxy(own.url)];
  const { pool, watch, givenUp, pass } = watchedPool({
    connection: { connectionString: proxy.databaseUrl },
    asking: { connectionString: other.databaseUrl },
  });
  const client = (await pool.connect()) as pg.PoolClient & PooledClient;
  const answered = proxy.holdAnswerTo("SELECT 'late'");
  const late = client.query("SELECT 'late' AS answer");
  late.catch(() => {});
  await answered;
  await untilBackend(client, "state = 'idle' AND state_change < clock_timestamp() - interval '1 second'");
  const first = other.holdAnswerTo("pg_stat_activity");
  pass(1_000);
  await first;
  const second = other.holdAnswerTo("pg_stat_activity");
  other.restore();
  await Promise.race([second, late]);
  proxy.restore();
  expect((await late).rows).toEqual([{ answer: "late" }]);
  other.restore();
  expect(givenUp).toEqual([]);
  client.release();
  watch.stop();
  await pool.end();
});

test("a connection whose statement the server is still at work on keeps its place until that is answered, and is then closed", async () => {
  const { pool, watch, givenUp, timeOut, untilChecked } = watchedPool();
  const holder = new pg.Client(own.connection);
  await holder.connect();
  await holder.query("SELECT pg_advisory_lock(2)");
  const client = await pool.connect();
  const text = "SELECT pg_advisory_lock(2)";
  const unanswered = client.query(text).catch((thrown: unknown) => thrown);
  await untilWaiting(holder, 1);
  await untilChecked();
  await timeOut();
  const error = await unanswered;
  expect(error).toMatchObject({
    code: "ETIMEDOUT",
    message:
      "a statement was not answered in time: the server is still at work on it, and waits for advisory",
  });
  await expect(client.query("SELECT 1")).rejects.toBe(error);
  // Only a commit that waits for a standby is a reason to refuse others like it.
  expect(watch.awaitsStandby(text)).toBe(false);
  client.release();
  await untilChecked();
  expect([givenUp, pool.totalCount, pool.idleCount]).toEqual([[error], 1, 0]);
  await holder.query("SELECT pg_advisory_unlock(2)");
  await vi.waitUntil(() => pool.totalCount === 0, { timeout: 45_000 });
  // The same if it is answered first, and given back then.
  const next = (await pool.connect()) as pg.PoolClient & PooledClient;
  const failed = expect(next.query("SELECT 1")).rejects.toBe(error);
  next.abandon(error as Error);
  await failed;
  await vi.waitUntil(() => next.askedAt === undefined, { timeout: 45_000 });
  next.release();
  expect(pool.totalCount).toBe(0);
  watch.stop();
  await holder.end();
  await pool.end();
});

// Prisma's defaults for both, and what one call may take that is not administrative.
test.for([
  2_000, 5_000, 15_000,
])("a transaction of Prisma's may begin and last for more than %d ms if the server answers in time", async (limit) => {
  const proxy = await startCuttableProxy(own.url);
  const database = openDatabase({ connectionString: proxy.patientUrl }, { poolSize: 1, onError() {} });
  onTestFinished(() => database.close());
  const { prisma } = await withPrisma(database);
  // Nothing waits for a connection: the pool has one.
  shortenTimers(limit);
  const begins = proxy.holdAnswerTo("BEGIN");
  const counted = prisma.$transaction(async (transaction) => {
    const counts = proxy.holdAnswerTo('FROM "public"."project"');
    const counting = transaction.project.count();
    counting.catch(() => {});
    await counts;
    await delay(250);
    proxy.restore();
    return counting;
  });
  counted.catch(() => {});
  await begins;
  await delay(250);
  proxy.restore();
  expect(await counted).toBe(0);
});

test("a server that is busy with a statement is asked about it on a new connection at most once a second", async () => {
  const database = openDatabase(own.connection, { poolSize: 2, onError() {} });
  const [holder, waiter] = [await database.pool.connect(), await database.pool.connect()];
  // However long the looks take.
  await waiter.query("SET statement_timeout = 0");
  await holder.query("SELECT pg_advisory_lock(1)");
  const askedAt: number[] = [];
  const connect = pg.Client.prototype.connect;
  const looks = vi.spyOn(pg.Client.prototype, "connect").mockImplementation(function (
    this: pg.Client,
    ...given: Parameters<typeof connect>
  ) {
    askedAt.push(performance.now());
    return connect.apply(this, given);
  });
  onTestFinished(() => looks.mockRestore());
  const waiting = waiter.query("SELECT pg_advisory_lock(1)");
  await expect.poll(() => askedAt.length).toBeGreaterThanOrEqual(3);
  await holder.query("SELECT pg_advisory_unlock(1)");
  await waiting;
  const gaps = askedAt.slice(1).map((at, look) => at - (askedAt[look] ?? 0));
  expect(Math.min(...gaps)).toBeGreaterThan(990);
  const open = async () => {
    const { rowCount } = await holder.query(
      "SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'phoneproof-watch'",
    );
    return rowCount;
  };
  await expect.poll(open, { timeout: 45_000 }).toBe(0);
  holder.release(true);
  waiter.release(true);
  await database.close();
});

test("a server that does not answer which statements it works on is asked again", async () => {
  const proxy = await startCuttableProxy(own.url);
  const database = openDatabase({ connectionString: proxy.databaseUrl }, { poolSize: 2, onError() {} });
  const [holder, waiter] = [await database.pool.connect(), await database.pool.connect()];
  // However long the looks take.
  await waiter.query("SET statement_timeout = 0");
  await holder.query("SELECT pg_advisory_lock(3)");
  const isHeld = proxy.holdAnswerTo("pg_stat_activity");
  const waiting = waiter.query("SELECT pg_advisory_lock(3)");
  await isHeld;
  await vi.waitUntil(() => proxy.timesSent("pg_stat_activity") > 1, { timeout: 45_000 });
  await holder.query("SELECT pg_advisory_unlock(3)");
  await waiting;
  holder.release(true);
  waiter.release(true);
  await database.close();
});

test("an unusable connection for notices is reported under its own setting, without its password", async () => {
  const config = parseConfig({
    ...{ PORT: "0", GRPC_PORT: "0", OPS_PORT: "0", LOG_LEVEL: "silent", PHONEPROOF_ADMIN_TOKEN: "x" },
    DATABASE_URL: own.url,
    DATABASE_NOTICES_URL: "postgres://somebody:secret@127.0.0.1:1/notices",
  });
  await expect(startService(config, createLog("silent", openLogOutput()))).rejects.toThrow(
    /^DATABASE_NOTICES_URL: the database at 127\.0\.0\.1:1\/notices cannot be used: (?!.*secret)/,
  );
});

describe("DATABASE_NOTICES_URL", () => {
  const start = (noticesUrl: string, databaseUrl = own.url) => {
    const config = parseConfig({
      ...{ PORT: "0", GRPC_PORT: "0", OPS_PORT: "0", LOG_LEVEL: "silent", PHONEPROOF_ADMIN_TOKEN: "x" },
      DATABASE_URL: databaseUrl,
      DATABASE_NOTICES_URL: noticesUrl,
    });
    return startService(config, createLog("silent", openLogOutput()));
  };

  test("of another database, from which no notice would ever come, ends the start", async () => {
    const other = await createDatabase();
    onTestFinished(other.drop);
    await expect(start(other.url)).rejects.toThrow(
      /^DATABASE_NOTICES_URL: the database at 127\.0\.0\.1:\d+\/suite_\w+ cannot be used: .+ this is another database, /,
    );
  });

  test("whose connection ends during the check of it is reported with what ended it", async () => {
    const proxy = await startCuttableProxy(own.url);
    const isAnnounced = proxy.holdAnswerTo("pg_notify");
    const failure = expect(start(own.url, proxy.patientUrl)).rejects.toThrow(
      /^DATABASE_NOTICES_URL: .+ cannot be used: terminating connection due to administrator command$/,
    );
    await isAnnounced;
    const administrator = new pg.Client(own.connection);
    await administrator.connect();
    await administrator.query(
      "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'phoneproof-notices'",
    );
    await administrator.end();
    proxy.restore();
    await failure;
  });

  test("may lead to the same database on another route, with a login without privileges", async () => {
    const administrator = new pg.Client(own.connection);
    await administrator.connect();
    const login = `listener_${own.connection.database}`;
    await administrator.query(`CREATE ROLE ${login} LOGIN PASSWORD 'known'`);
    onTestFinished(async () => {
      await administrator.query(`DROP ROLE ${login}`);
      await administrator.end();
    });
    const url = new URL(own.url);
    Object.assign(url, { hostname: "localhost", username: login, password: "known" });
    await (await start(url.href)).close();
  });
});

test("a missing password is reported as such, and PGPASSWORD can supply it", async () => {
  const url = new URL(own.url);
  url.password = "";
  const config = parseConfig({
    ...{ PORT: "0", GRPC_PORT: "0", OPS_PORT: "0", LOG_LEVEL: "silent", PHONEPROOF_ADMIN_TOKEN: "x" },
    DATABASE_URL: url.href,
  });
  const start = () => startService(config, createLog("silent", openLogOutput()));
  await expect(start()).rejects.toThrow(
    /^DATABASE_URL: the database at .+ cannot be used: the server requires a password: set one in the URL or in PGPASSWORD$/,
  );
  onTestFinished(() => {
    vi.unstubAllEnvs();
  });
  vi.stubEnv("PGPASSWORD", "another");
  await expect(start()).rejects.toThrow("password authentication failed");
  vi.stubEnv("PGPASSWORD", own.connection.password);
  await (await start()).close();
});

test("a database whose encoding is not UTF-8 is refused at the start, and left unchanged", async () => {
  const ascii = await createDatabase({ encoding: "SQL_ASCII" });
  onTestFinished(ascii.drop);
  const config = parseConfig({
    ...{ PORT: "0", GRPC_PORT: "0", OPS_PORT: "0", LOG_LEVEL: "silent", PHONEPROOF_ADMIN_TOKEN: "x" },
    DATABASE_URL: ascii.url,
  });
  await expect(startService(config, createLog("silent", openLogOutput()))).rejects.toThrow(
    /^DATABASE_URL: the database at 127\.0\.0\.1:\d+\/suite_\w+ cannot be used: its encoding is SQL_ASCII and must be UTF8/,
  );
  const client = new pg.Client(ascii.connection);
  await client.connect();
  const { rows } = await client.query("SELECT FROM pg_class WHERE relnamespace = 'public'::regnamespace");
  expect(rows).toEqual([]);
  await client.end();
});

test.for([
  { from: "the environment", url: "postgres:///phoneproof" },
  {
    from: "parameters, which come before the rest of the URL",
    url: "postgres://127.0.0.3:2/phoneproof?host=127.0.0.4&host=127.0.0.2&port=1",
  },
])("an unreachable database is reported with its address, even if that comes from $from", async ({ url }) => {
  onTestFinished(() => {
    vi.unstubAllEnvs();
  });
  vi.stubEnv("PGHOST", "127.0.0.2");
  vi.stubEnv("PGPORT", "1");
  const config = parseConfig({
    ...{ PORT: "0", GRPC_PORT: "0", OPS_PORT: "0", LOG_LEVEL: "silent", PHONEPROOF_ADMIN_TOKEN: "x" },
    DATABASE_URL: url,
  });
  await expect(startService(config, createLog("silent", openLogOutput()))).rejects.toThrow(
    /^DATABASE_URL: the database at 127\.0\.0\.2:1\/phoneproof cannot be used: connect ECONNREFUSED 127\.0\.0\.2:1$/,
  );
});

test("PGOPTIONS beside DATABASE_URL ends the start, while options in the URL take effect", async () => {
  const PGOPTIONS = "-c synchronous_commit=off";
  expect(() => parseConfig({ DATABASE_URL: own.url, PGOPTIONS })).toThrow(/^PGOPTIONS would /);
  expect(() => parseConfig({ PGOPTIONS })).not.toThrow();
  const url = `${own.url}?options=${encodeURIComponent("-c work_mem=5MB")}`;
  const { databaseUrl } = parseConfig({ DATABASE_URL: url });
  const database = openDatabase({ connectionString: databaseUrl ?? "" }, { poolSize: 1, onError() {} });
  expect((await database.pool.query("SHOW work_mem")).rows).toEqual([{ work_mem: "5MB" }]);
  await database.close();
});

test.for([
  { name: "DATABASE_NOTICES_URL", value: "postgres://127.0.0.1/notices" },
  { name: "DATABASE_PREPARED_STATEMENTS", value: "maybe" },
  { name: "REDIS_URL", value: "127.0.0.1:6379" },
  { name: "REDIS_URL", value: "redis://127.0.0.1/not-a-number" },
  { name: "REDIS_URL", value: "redis://:a b@" },
  { name: "REDIS_URL", value: "redis://user:100%zz@127.0.0.1:6379/0" },
  { name: "REDIS_URL", value: "redis:///3" },
])("$name=$value is refused with the name of the setting but not its value", ({ name, value }) => {
  expect(() => parseConfig({ [name]: value })).toThrow(new RegExp(`^${name} must `));
  expect(() => parseConfig({ [name]: value })).not.toThrow(value);
});
