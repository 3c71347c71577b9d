import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import path from "node:path";
import { type Timestamp, timestampDate, timestampFromMs, timestampMs } from "@bufbuild/protobuf/wkt";
import { afterAll, describe, expect, test, vi } from "vitest";
import { decodeId } from "../../src/core/ids.ts";
import { ErasureService } from "../../src/gen/proto/phoneproof/v1/erasure_pb.ts";
import {
  type EnvironmentStatistics,
  StatisticsService,
  type VerificationCounts,
} from "../../src/gen/proto/phoneproof/v1/statistics_pb.ts";
import { Carrier, Environment } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { commitHorizon } from "../../src/storage/commit-horizon.ts";
import { openDatabase } from "../../src/storage/database.ts";
import { createStatisticsCounting } from "../../src/storage/statistics-counting.ts";
import { merchant } from "../gateway/merchant.ts";
import { byTheClock, installClock, moveClock } from "../harness/clock.ts";
import { plainEnvironment } from "../harness/environment.ts";
import { tablesWith } from "../harness/every-table.ts";
import { startTestService, type TestProject } from "../harness/service.ts";
import { answerOf } from "../rpc/grpc-answer.ts";
import { untilWaiting } from "./barrier.ts";
import { createPending, letExpire, type Pending, uuidOf } from "./pending.ts";

/** Counts nothing itself: tests start and stop workers for that. */
const service = await startTestService({ ROLES: "api" });
const database = openDatabase({ connectionString: service.databaseUrl }, { poolSize: 4, onError: () => {} });
afterAll(() => database.close());
const counting = createStatisticsCounting(database);

const program = path.join(import.meta.dirname, "../../bin/start.mjs");

async function read(project: TestProject, request: object = {}) {
  return service.client(StatisticsService, project.liveKey).getStatistics(request);
}

async function live(project: TestProject, request: object = {}) {
  const { environments } = await read(project, request);
  const [environment] = environments;
  if (environments.length !== 1 || environment === undefined) throw new Error("there is not one environment");
  return environment;
}

const numbersIn = (counts: VerificationCounts | undefined) =>
  counts && [counts.created, counts.verified, counts.expired, counts.cancelled].map(Number);

/** Created, verified, expired and cancelled in the last day. */
const totalOf = async (project: TestProject) => numbersIn((await live(project)).total);

/** For a round that the database did not answer in time: as in a worker, a later one goes on. */
function unanswered(error: unknown): false {
  expect(error).toMatchObject({ status: 503 });
  return false;
}

/** Counts until everything that has happened by now is counted. */
async function countAll({ db } = service, { count } = counting): Promise<void> {
  const { rows } = await db.query<{ now: Date }>("SELECT now()");
  const [{ now }] = rows as [{ now: Date }];
  await vi.waitUntil(
    async () => {
      while (await count().catch(unanswered));
      const { rows } = await db.query(
        "SELECT min(counted_until) > $1 AND NOT EXISTS (SELECT FROM statistics_gap) AS done FROM statistics_progress",
        [now],
      );
      return rows[0].done;
    },
    { interval: 50, timeout: 45_000 },
  );
}

const cancelAll = (project: TestProject, pending: readonly Pending[]) =>
  Promise.all(pending.map(({ id }) => merchant(service.httpUrl, project.liveKey).cancel(id)));

const pendings = (project: TestProject, count: number, key = project.liveKey): Promise<Pending[]> =>
  Promise.all(Array.from({ length: count }, () => createPending(merchant(service.httpUrl, key))));

let senders = 10_000_000;

async function verify(pending: readonly Pending[], carrier: string): Promise<void> {
  const receipts = await service.sms(
    ...pending.map(({ to, text }) => ({ to, text, carrier, from: `010${++senders}` })),
  );
  expect(new Set(receipts.map(({ outcome }) => outcome))).toEqual(new Set(["VERIFIED"]));
}

// Tests move creations into the past. The past before them is counted first, so that they are not taken for it.
await countAll();

test("creations and their outcomes are reported by number and carrier, separately for each environment", async () => {
  const project = await service.createProject();
  const [skt, kt, unknown, expired, cancelled] = [3, 2, 1, 2, 1].map((count) => pendings(project, count));
  await pendings(project, 4, project.testKey);
  const stranger = await service.createProject();
  await verify(await pendings(stranger, 1), "KT");
  await verify((await skt) ?? [], "SKT");
  await verify((await kt) ?? [], "KTF");
  await verify((await unknown) ?? [], "another");
  await cancelAll(project, (await cancelled) ?? []);
  for (const { id } of (await expired) ?? []) {
    await letExpire(service.db, id);
    await merchant(service.httpUrl, project.liveKey).read(id);
  }
  await pendings(project, 1);
  // However long that really took.
  await service.db.query(
    `UPDATE verification SET verified_at = created_at + CASE carrier WHEN 'KT' THEN interval '10 s' ELSE interval '0.5 s' END
     WHERE status = 'verified'`,
  );
  await countAll();

  const answer = await read(project);
  expect(answer.incomplete).toBe(false);
  const [environment, ...others] = answer.environments;
  expect(others).toEqual([]);
  expect(environment?.environment).toBe(Environment.LIVE);
  expect(numbersIn(environment?.total)).toEqual([10, 6, 2, 1]);
  expect(environment?.total?.conversion).toBeCloseTo(6 / 9);
  expect(environment?.total?.timeToVerify?.p50Seconds).toBe(1);
  // Times are accurate to within a tenth.
  expect(environment?.total?.timeToVerify?.p95Seconds).toBeGreaterThan(9);
  expect(environment?.total?.timeToVerify?.p95Seconds).toBeLessThan(11);
  expect(environment?.numbers.map(({ destination, counts }) => [destination, numbersIn(counts)])).toEqual([
    [project.liveNumber, [10, 6, 2, 1]],
  ]);
  const carriers = environment?.carriers.map(({ carrier, verified }) => [carrier, Number(verified)]);
  expect(Object.fromEntries(carriers ?? [])).toEqual({
    [Carrier.SKT]: 3,
    [Carrier.KT]: 2,
    [Carrier.UNSPECIFIED]: 1,
  });
  expect(environment?.hours).toHaveLength(24);
  const inHours = environment?.hours.map(({ counts }) => numbersIn(counts) ?? []) ?? [];
  expect(inHours.reduce((sum, counts) => sum.map((count, index) => count + (counts[index] ?? 0)))).toEqual([
    10, 6, 2, 1,
  ]);

  const token = await service.createToken({ scope: "read", projectId: project.projectId });
  const both = await service.client(StatisticsService, token).getStatistics({});
  expect(both.environments.map(({ environment, total }) => [environment, numbersIn(total)])).toEqual([
    [Environment.LIVE, [10, 6, 2, 1]],
    [Environment.TEST, [4, 0, 0, 0]],
  ]);
});

test("an event that commits after later ones were due for counting is waited for, and counted", async () => {
  const project = await service.createProject();
  const [late, early] = (await pendings(project, 2)) as [Pending, Pending];
  await countAll();
  // One of the service that has begun earlier and not written anything yet, but may.
  const another = await service.db.connect();
  const holder = await service.db.connect();
  try {
    await another.query("SET application_name = 'phoneproof'");
    await another.query("BEGIN");
    const { rows: begun } = await another.query<{ now: Date }>("SELECT now()");
    await service.db.query("SELECT pg_sleep(0.02)");
    await holder.query("BEGIN");
    await holder.query("UPDATE verification SET status = 'cancelled' WHERE id = $1", [uuidOf(late.id)]);
    await holder.query("INSERT INTO event VALUES ($1, 'verification.cancelled', now())", [uuidOf(late.id)]);
    await cancelAll(project, [early]);
    const { rows } = await holder.query<{ now: Date }>("SELECT now()");
    // Longer than counting lags behind if no transaction is open.
    await vi.waitUntil(async () => Date.now() - (rows[0]?.now.getTime() ?? 0) > 3_500, {
      interval: 50,
      timeout: 45_000,
    });
    expect(new Date(await commitHorizon(database)).getTime()).toBeLessThanOrEqual(
      begun[0]?.now.getTime() ?? 0,
    );
    another.release(true);
    await counting.count();
    const { countedUntil, environments } = await read(project);
    expect(numbersIn(environments[0]?.total)).toEqual([2, 0, 0, 0]);
    expect(countedUntil && timestampDate(countedUntil).getTime()).toBeLessThanOrEqual(
      rows[0]?.now.getTime() ?? 0,
    );
    await holder.query("COMMIT");
  } finally {
    holder.release(true);
  }
  await countAll();
  expect(await totalOf(project)).toEqual([2, 0, 0, 2]);
});

test("if the server does not show when a transaction of the service began, longer is waited than it may take", async () => {
  const hidden = await service.db.connect();
  try {
    await hidden.query("SET application_name = 'phoneproof'; SET track_activities = off");
    const horizon = new Date(await commitHorizon(database)).getTime();
    const { rows } = await hidden.query<{ now: Date }>("SELECT now()");
    expect((rows[0]?.now.getTime() ?? 0) - horizon).toBeGreaterThanOrEqual(15_000);
  } finally {
    hidden.release(true);
  }
});

test("so it is if the service's sessions are another user's, of which the server shows little more than the name", async () => {
  const url = new URL(service.databaseUrl);
  url.username = "sees_little";
  await service.db.query(`CREATE ROLE ${url.username} LOGIN PASSWORD '${url.password}'`);
  const other = openDatabase({ connectionString: url.href }, { poolSize: 1, onError: () => {} });
  const named = await service.db.connect();
  try {
    await named.query("SET application_name = 'phoneproof'");
    const horizon = new Date(await commitHorizon(other)).getTime();
    const { rows } = await named.query<{ now: Date }>("SELECT now()");
    expect((rows[0]?.now.getTime() ?? 0) - horizon).toBeGreaterThanOrEqual(15_000);
  } finally {
    named.release(true);
    await other.close();
    await service.db.query(`DROP ROLE ${url.username}`);
  }
});

describe("if a worker is killed", () => {
  const barrier = 4712;
  const children: ChildProcess[] = [];

  function startWorker(): ChildProcess {
    const environment = { ROLES: "worker", OPS_PORT: "0", DATABASE_URL: service.databaseUrl };
    const child = spawn(process.execPath, [program], {
      stdio: "ignore",
      env: plainEnvironment({ LOG_LEVEL: "silent", ...environment }),
    });
    children.push(child);
    return child;
  }

  /** Waits until a worker has counted, even if it found nothing. */
  async function untilCounting(): Promise<void> {
    const look = () => service.db.query("SELECT xmin::text FROM statistics_progress ORDER BY task");
    const { rows: before } = await look();
    await vi.waitUntil(async () => JSON.stringify((await look()).rows) !== JSON.stringify(before), {
      interval: 20,
      timeout: 45_000,
    });
  }

  async function endTheWaiting(): Promise<void> {
    await service.db.query(
      `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
       WHERE datname = current_database() AND wait_event = 'advisory'`,
    );
  }

  async function kill(child: ChildProcess): Promise<void> {
    if (child.exitCode !== null || child.signalCode !== null) return;
    child.kill("SIGKILL");
    await once(child, "exit");
  }

  afterAll(() => Promise.all(children.map(kill)));

  test.for([
    { name: "the database completes its statement", ends: false },
    { name: "the database aborts its statement", ends: true },
  ])("in the middle of counting, everything is counted once: $name", async ({ ends }) => {
    const project = await service.createProject();
    const worker = startWorker();
    await untilCounting();
    await service.db.query(`
      CREATE OR REPLACE FUNCTION stand_still_counting() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_advisory_xact_lock_shared(${barrier}); RETURN NEW; END';
      CREATE TRIGGER stand_still BEFORE INSERT ON reception_statistics
        FOR EACH ROW EXECUTE FUNCTION stand_still_counting()`);
    const holder = await service.db.connect();
    try {
      await holder.query(`SELECT pg_advisory_lock(${barrier})`);
      const pending = await pendings(project, 20);
      await cancelAll(project, pending.slice(0, 5));
      await untilWaiting(service.db, 1);
      await kill(worker);
      if (ends) await endTheWaiting();
    } finally {
      holder.release(true);
      await service.db.query("DROP TRIGGER stand_still ON reception_statistics");
    }
    await countAll();
    expect(await totalOf(project)).toEqual([20, 0, 0, 5]);
  });
});

test("several workers count everything once, while it happens", async () => {
  const project = await service.createProject();
  const workers = await Promise.all([1, 2].map(() => service.startAnother({ ROLES: "worker" })));
  let racing = true;
  const races = [1, 2].map(async () => {
    while (racing) await counting.count().catch(unanswered);
  });
  try {
    for (let round = 0; round < 10; round++) {
      const pending = await pendings(project, 40);
      await cancelAll(project, pending.slice(0, 10));
      await verify(pending.slice(10, 20), "LGU+");
    }
  } finally {
    racing = false;
    await Promise.all(races);
  }
  // Creations and endings are counted one after the other.
  await expect.poll(() => totalOf(project)).toEqual([400, 100, 0, 100]);
  await countAll();
  expect(await totalOf(project)).toEqual([400, 100, 0, 100]);
  await Promise.all(workers.map((worker) => worker.close()));
});

test("after an upgrade from a version without statistics, the past is counted as well as what is new", async () => {
  const project = await service.createProject();
  const before = await pendings(project, 7);
  await verify(before.slice(0, 2), "SKT");
  await cancelAll(project, before.slice(2, 3));
  // As the version before left it.
  await service.db.query(`
    DROP TABLE number_statistics, carrier_statistics, reception_statistics, statistics_progress, statistics_gap;
    DROP TYPE reception_kind;
    DROP INDEX event_occurred_at_idx;
    DELETE FROM _prisma_migrations WHERE migration_name LIKE '%_statistics'`);
  const upgraded = await service.startAnother({ ROLES: "api" });
  await cancelAll(project, before.slice(3, 5));
  await pendings(project, 1);
  expect((await read(project)).incomplete).toBe(true);
  await countAll();
  expect((await read(project)).incomplete).toBe(false);
  expect(await totalOf(project)).toEqual([8, 2, 0, 3]);
  await upgraded.close();
});

test("creations of a day without counting are counted by their ids, which may be off by up to an hour", async () => {
  const fresh = await startTestService({ ROLES: "api" });
  const project = await fresh.createProject();
  const own = openDatabase({ connectionString: fresh.databaseUrl }, { poolSize: 1, onError: () => {} });
  const ownCounting = createStatisticsCounting(own);
  await countAll(fresh, ownCounting);
  const { id } = await createPending(merchant(fresh.httpUrl, project.liveKey));
  const { rows } = await fresh.db.query(
    `UPDATE statistics_progress SET counted_until = date_trunc('milliseconds', now() - interval '30 hours')
     WHERE task = 'creations' RETURNING counted_until AS since`,
  );
  // Their idempotency records are long gone.
  await fresh.db.query(
    `INSERT INTO verification (
       id, project_id, environment, mode, status, client_reference, state, destination, sms_text, created_at, expires_at
     )
     SELECT uuidv7(made.id_at - now()), v.project_id, v.environment, v.mode, v.status, '', '', v.destination, '',
       made.created_at, made.created_at + interval '10 minutes'
     FROM verification v, (VALUES
       ($2::timestamptz - interval '1 millisecond', $2::timestamptz),
       ($2, $2 - interval '59 minutes'),
       (now() - interval '10 seconds', now() + interval '59 minutes')
     ) AS made (created_at, id_at)
     WHERE v.id = $1`,
    [uuidOf(id), rows[0].since],
  );
  await countAll(fresh, ownCounting);
  const answer = await fresh.client(StatisticsService, project.liveKey).getStatistics({ hours: 48 });
  // The one that the three are copied from, and two of them: the first was counted before.
  expect(numbersIn(answer.environments[0]?.total)?.[0]).toBe(3);
  await own.close();
});

test("after a clock that was ahead is corrected, everything is counted exactly once", async () => {
  const [project, ahead] = [await service.createProject(), await service.createProject()];
  await verify((await pendings(project, 3)).slice(0, 1), "SKT");
  await cancelAll(ahead, (await pendings(ahead, 2)).slice(0, 1));
  await countAll();
  const { db } = service;
  const id = ({ projectId }: TestProject) => decodeId("prj_", projectId);
  const moveTo = async (time: string) => {
    const of = "SELECT id FROM verification WHERE project_id = $1";
    for (const statement of [
      `UPDATE verification SET created_at = ${time}, expires_at = ${time} + interval '1 hour' WHERE project_id = $1`,
      `UPDATE event SET occurred_at = ${time} WHERE verification_id IN (${of})`,
      `UPDATE idempotency_record SET created_at = ${time} WHERE project_id = $1`,
    ]) {
      await db.query(statement, [id(ahead)]);
    }
  };
  await moveTo("now() + interval '2 days'");
  await db.query("UPDATE number_statistics SET hour = hour + interval '2 days' WHERE project_id = $1", [
    id(ahead),
  ]);
  await db.query("UPDATE statistics_progress SET counted_until = now() + interval '3 days'");
  // As if they were a day old by the clock that was ahead.
  await db.query("DELETE FROM idempotency_record WHERE project_id = $1", [id(project)]);

  await pendings(project, 1);
  const countsAhead = async () =>
    (await db.query("SELECT FROM number_statistics WHERE project_id = $1", [id(ahead)])).rowCount;
  // While another process is counting, nothing is taken back: its counts would be added afterwards.
  const other = await db.connect();
  try {
    await other.query("BEGIN; SELECT FROM statistics_progress WHERE task = 'transitions' FOR UPDATE");
    await counting.count();
    expect(await countsAhead()).toBe(1);
  } finally {
    other.release(true);
  }
  await Promise.all([counting.count(), counting.count(), counting.count()]);
  await countAll();
  expect(await totalOf(project)).toEqual([4, 1, 0, 0]);
  expect(await countsAhead()).toBe(0);

  await moveTo("now()");
  await countAll();
  expect(await totalOf(ahead)).toEqual([2, 0, 0, 1]);
  expect(await totalOf(project)).toEqual([4, 1, 0, 0]);
});

test.for([
  { name: "9 hours, after everything was counted", hoursAhead: 9, countsAll: true },
  {
    name: "30 hours, while a gap was still being counted",
    hoursAhead: 30,
    countsAll: false,
  },
])("everything is counted once when the clock jumps ahead and back by $name", async ({
  hoursAhead,
  countsAll,
}) => {
  const plain = await startTestService({ ROLES: "api" });
  await installClock(plain.db);
  const url = byTheClock(plain.databaseUrl);
  const other = await plain.startAnother({ ROLES: "api", DATABASE_URL: url });
  const own = openDatabase({ connectionString: url }, { poolSize: 1, onError: () => {} });
  const { count } = createStatisticsCounting(own);
  const project = await other.createProject();
  const shop = merchant(other.httpUrl, project.liveKey);
  const make = async (cancelled: number, verified: number, rest = 0) => {
    const created = await Promise.all(
      Array.from({ length: cancelled + verified + rest }, () => createPending(shop)),
    );
    for (const { id } of created.slice(0, cancelled)) await shop.cancel(id);
    for (const { to, text } of created.slice(cancelled, cancelled + verified)) {
      await other.sms({ to, text, from: `010${++senders}`, carrier: "KT" });
    }
  };
  /** Adds copies of a pending verification, each made a millisecond later by the clock, with the ids of their times. */
  const copyPending = (copies: number) =>
    own.query({
      text: `
        WITH made AS (
          INSERT INTO verification (
            id, project_id, environment, mode, status, client_reference, state, destination, sms_text, created_at, expires_at
          )
          SELECT uuidv7(now() - pg_catalog.now() + n * interval '1 ms'), v.project_id, v.environment, v.mode, v.status, '', '',
            v.destination, '', now() + n * interval '1 ms', now() + interval '10 minutes'
          FROM (SELECT * FROM verification WHERE status = 'pending' LIMIT 1) v, generate_series(1, $1::int) n
          RETURNING id, project_id, environment, created_at
        )
        INSERT INTO idempotency_record (
          project_id, environment, key, request_digest, verification_id, verification_url, created_at
        )
        SELECT project_id, environment, id::text, '', id, '', created_at FROM made`,
      values: [copies],
      rowMode: "array",
    });
  // Counting lags two seconds behind: after this, everything that exists is counted.
  const countNow = async () => {
    await moveClock(plain.db, 10_000);
    while (await count());
  };
  const currentCounts = async () => {
    const answer = await other.client(StatisticsService, project.liveKey).getStatistics({ hours: 48 });
    const { rows } = await own.query<[number]>({
      text: "SELECT extract(epoch FROM now())::float8",
      rowMode: "array",
    });
    const receptions = await own.query<[number, number]>({
      text: `SELECT sum(created) FILTER (WHERE kind = 'number')::int, sum(verified) FILTER (WHERE kind = 'carrier')::int
             FROM reception_statistics WHERE hour <= now()`,
      rowMode: "array",
    });
    const [environment] = answer.environments;
    return {
      total: numbersIn(environment?.total),
      carriers: environment?.carriers.map(({ verified }) => Number(verified)),
      receptions: receptions.rows[0],
      // Nothing is reported of the future.
      isPresent: timestampMs(answer.countedUntil as Timestamp) <= (rows[0]?.[0] as number) * 1000,
    };
  };
  try {
    await make(1, 1, 1);
    await countNow();
    expect(await currentCounts()).toEqual({
      total: [3, 1, 0, 1],
      carriers: [1],
      receptions: [3, 1],
      isPresent: true,
    });

    await moveClock(plain.db, hoursAhead * 3_600_000);
    // More than one statement counts.
    await make(11, 11);
    await copyPending(1_078);
    if (countsAll) {
      await countNow();
      expect((await currentCounts()).total).toEqual([1103, 12, 0, 12]);
    } else {
      await moveClock(plain.db, 10_000);
      await count();
      expect((await plain.db.query("SELECT FROM statistics_gap")).rowCount).toBe(1);
    }

    await moveClock(plain.db, -hoursAhead * 3_600_000);
    // What is created before the counts are corrected has ids of the time that the service still assumes.
    const inFlight = countsAll ? 2 : 0;
    await make(0, 0, inFlight);
    while (await count());
    await make(2, 1);
    await countNow();
    expect(await currentCounts()).toEqual({
      total: [6 + inFlight, 2, 0, 3],
      carriers: [2],
      receptions: [6 + inFlight, 2],
      isPresent: true,
    });

    await moveClock(plain.db, hoursAhead * 3_600_000);
    await countNow();
    expect(await currentCounts()).toEqual({
      total: [1106 + inFlight, 13, 0, 14],
      carriers: [13],
      receptions: [1106 + inFlight, 13],
      isPresent: true,
    });

    // So little that the clock has caught up by the next round.
    await moveClock(plain.db, -2_500);
    await make(1, 0);
    await moveClock(plain.db, 1_000);
    while (await count());
    await countNow();
    expect((await currentCounts()).total).toEqual([1107 + inFlight, 13, 0, 15]);
  } finally {
    await own.close();
  }
});

test("counts are kept when a phone is erased, and never contained it", async () => {
  const project = await service.createProject();
  const phone = "01087653333";
  const [pending] = (await pendings(project, 1)) as [Pending];
  await service.sms({ to: pending.to, text: pending.text, from: phone, carrier: "KT" });
  await countAll();
  expect(await tablesWith(service.db, phone)).toEqual(["inbound_message", "verification"]);
  await Array.fromAsync(service.client(ErasureService).erasePhone({ phone }));
  expect(await tablesWith(service.db, phone)).toEqual([]);
  expect(await totalOf(project)).toEqual([1, 1, 0, 0]);
});

describe("the requested period", async () => {
  const project = await service.createProject();
  await pendings(project, 1);
  await countAll();
  const hour = 3_600_000;
  const hourNow = () => Math.floor(Date.now() / hour) * hour;

  test.for([
    { name: "is the last 24 hours by default", request: {}, firstAgo: 23, hours: 24 },
    { name: "is as many hours as requested", request: { hours: 744 }, firstAgo: 743, hours: 744 },
    { name: "reaches from since to now", request: { since: 5 }, firstAgo: 5, hours: 6 },
    {
      name: "begins at since and is as long as requested",
      request: { since: 5, hours: 2 },
      firstAgo: 5,
      hours: 2,
    },
  ])("$name", async ({ request, firstAgo, hours }) => {
    const { since: ago, ...rest } = request as { since?: number; hours?: number };
    const ask = (thisHour: number) => {
      const since = ago === undefined ? {} : { since: timestampFromMs(thisHour - ago * hour + 1_234_567) };
      return read(project, { ...since, ...rest });
    };
    let thisHour = hourNow();
    let answer = await ask(thisHour);
    // The hour may have ended meanwhile.
    while (hourNow() !== thisHour) {
      thisHour = hourNow();
      answer = await ask(thisHour);
    }
    const first = thisHour - firstAgo * hour;
    expect(answer.since && timestampMs(answer.since)).toBe(first);
    expect(answer.until && timestampMs(answer.until)).toBe(first + hours * hour);
    const [{ hours: hourCounts, total }] = answer.environments as [EnvironmentStatistics];
    expect(hourCounts.map(({ hour }) => hour && timestampMs(hour))).toEqual(
      Array.from({ length: hours }, (_, index) => first + index * hour),
    );
    expect(Number(total?.created)).toBe(first + hours * hour > thisHour ? 1 : 0);
  });

  test("may be before 1970", async () => {
    const since = timestampFromMs(-30 * hour);
    const answer = await read(project, { since, hours: 2 });
    expect(answer).toMatchObject({ since, until: timestampFromMs(-28 * hour), incomplete: false });
    const [{ hours: hourCounts }] = answer.environments as [EnvironmentStatistics];
    expect(hourCounts.map(({ hour }) => hour && timestampMs(hour))).toEqual([-30 * hour, -29 * hour]);
  });

  test.for([
    { name: "more hours than allowed", request: { hours: 745 }, fields: ["hours"] },
    { name: "negative hours", request: { hours: -1 }, fields: ["hours"] },
    { name: "the future", request: { since: timestampFromMs(Date.now() + 2 * hour) }, fields: ["since"] },
    { name: "everything since long ago", request: { since: timestampFromMs(0) }, fields: ["since"] },
    { name: "an impossible timestamp", request: { since: { seconds: 1n << 60n } }, fields: ["since"] },
    {
      name: "too many nanoseconds, and negative hours",
      request: { since: { ...timestampFromMs(Date.now()), nanos: 1_000_000_000 }, hours: -1 },
      fields: ["hours", "since"],
    },
  ])("is refused: $name", async ({ request, fields }) => {
    const client = service.client(StatisticsService, project.liveKey);
    expect(await answerOf((options) => client.getStatistics(request, options))).toMatchObject({
      code: "validation_failed",
      fields,
    });
  });
});
