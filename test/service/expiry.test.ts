import { beforeAll, expect, onTestFinished, test, vi } from "vitest";
import { decodeId } from "../../src/core/ids.ts";
import { openDatabase } from "../../src/storage/database.ts";
import { createExpireDue } from "../../src/storage/expiry.ts";
import { merchant } from "../gateway/merchant.ts";
import { moveExpiry } from "../harness/expiry.ts";
import { startTestService, type TestProject, type TestService } from "../harness/service.ts";
import { createPending, eventsOf, uuidOf } from "./pending.ts";

let service: TestService;
let project: TestProject;

beforeAll(async () => {
  service = await startTestService();
  project = await service.createProject();
});

let created = 0;

async function create(): Promise<string> {
  const response = await fetch(`${service.httpUrl}/v1/verifications`, {
    method: "POST",
    headers: {
      authorization: `Bearer ${project.liveKey}`,
      "content-type": "application/json",
      "idempotency-key": `expiry-${++created}`,
    },
    body: "{}",
  });
  const { id } = (await response.json()) as { id: string };
  return id;
}

/** Reads the table instead of the API, so that only the expiry job moves a verification. */
async function statuses(): Promise<Record<string, number>> {
  const { rows } = await service.db.query("SELECT status, count(*)::int FROM verification GROUP BY 1");
  return Object.fromEntries(rows.map(({ status, count }) => [status, count]));
}

/** Moves the expiry of everything pending to `seconds` from now. */
const expireIn = (seconds: number) =>
  moveExpiry(service.db, {
    expiresAt: "now() + make_interval(secs => $1)",
    where: "status = 'pending'",
    values: [seconds],
  });

/** Copies everything pending `$1` times. */
const copies = `
WITH copied AS (
  INSERT INTO verification
  SELECT gen_random_uuid(), project_id, environment, mode, status, expected_phone, phone, carrier, client_reference,
    state, parent_origin, return_url, destination, sms_text, created_at, expires_at, verified_at
  FROM verification, generate_series(1, $1::int) WHERE status = 'pending'
  RETURNING id, destination, expires_at
)
INSERT INTO live_code (destination, code, code_format, verification_id, expires_at)
SELECT destination, id::text, 'numeric', id, expires_at FROM copied`;

/** The position up to which everything due has been expired, in milliseconds since the epoch. */
async function lookedUpTo(): Promise<number> {
  const { rows } = await service.db.query(
    "SELECT extract(epoch FROM done_up_to::timestamptz)::float8 * 1000 AS at FROM retention_progress WHERE task = 'expire'",
  );
  return rows[0].at;
}

test("a verification that nobody reads is expired, with its event", async () => {
  const id = await create();
  await expireIn(0);
  await vi.waitUntil(async () => (await statuses()).pending === undefined, {
    timeout: 45_000,
    interval: 20,
  });
  const { rows } = await service.db.query(
    `SELECT e.type, v.status, e.occurred_at >= v.expires_at AS after FROM event e
     JOIN verification v ON v.id = e.verification_id WHERE v.id = $1`,
    [decodeId("vrf_", id)],
  );
  expect(rows).toEqual([{ type: "verification.expired", status: "expired", after: true }]);
});

test("a verification that is not due stays pending", async () => {
  await service.db.query("DELETE FROM event; DELETE FROM verification");
  await create();
  await expireIn(3600);
  await create();
  await moveExpiry(service.db, {
    expiresAt: "now()",
    where: "id = (SELECT max(id::text)::uuid FROM verification WHERE status = 'pending')",
  });
  await vi.waitUntil(async () => (await statuses()).expired !== undefined, { timeout: 45_000, interval: 20 });
  expect(await statuses()).toEqual({ expired: 1, pending: 1 });
});

/** Locks `ids`, which are pending, in an open transaction from before they are due. Returns its connection. */
async function holdUntilDue(ids: readonly string[]) {
  const holder = await service.db.connect();
  // Rows that expired before they were locked are made pending again, with more time.
  for (let seconds = 0.5; ; seconds *= 2) {
    await moveExpiry(service.db, {
      expiresAt: "now() + make_interval(secs => $2)",
      where: "id = ANY ($1)",
      values: [ids, seconds],
    });
    await holder.query("BEGIN");
    const { rows } = await holder.query("SELECT status FROM verification WHERE id = ANY ($1) FOR UPDATE", [
      ids,
    ]);
    if (rows.every(({ status }) => status === "pending")) return holder;
    await holder.query("UPDATE verification SET status = 'pending' WHERE id = ANY ($1)", [ids]);
    await holder.query("DELETE FROM event WHERE verification_id = ANY ($1)", [ids]);
    await holder.query("COMMIT");
  }
}

const cancelling = `
WITH cancelled AS (
  UPDATE verification SET status = 'cancelled' WHERE id = ANY ($1) AND status = 'pending' RETURNING id
)
INSERT INTO event SELECT id, 'verification.cancelled', now() FROM cancelled`;

test("several processes expire a backlog, each row once, while other rows are cancelled", async () => {
  await service.db.query("DELETE FROM event; DELETE FROM verification");
  await Promise.all(Array.from({ length: 300 }, create));
  // Many more like these, without creating each over HTTP.
  await service.db.query(copies, [9]);
  const others = await Promise.all([service.startAnother({ ROLES: "worker" }), service.startAnother()]);
  const { rows: some } = await service.db.query("SELECT id FROM verification ORDER BY random() LIMIT 50");
  const inTime = some.slice(0, 10).map(({ id }) => id);
  const raced = some.slice(10).map(({ id }) => id);
  const holder = await holdUntilDue(inTime);
  await holder.query(cancelling, [inTime]);
  // Not concurrently with the test's own update: two that lock many rows in different orders may deadlock.
  await moveExpiry(service.db, {
    expiresAt: "now()",
    where: "status = 'pending' AND id <> ALL ($1)",
    values: [inTime],
  });
  await service.db.query(cancelling, [raced]);
  await vi.waitUntil(async () => (await statuses()).pending === inTime.length, {
    timeout: 45_000,
    interval: 50,
  });
  await holder.query("COMMIT");
  holder.release();
  const { rows: last } = await service.db.query(
    "SELECT extract(epoch FROM max(expires_at))::float8 * 1000 AS at FROM verification",
  );
  await vi.waitUntil(async () => (await lookedUpTo()) >= last[0].at, { timeout: 45_000, interval: 50 });
  const { expired = 0, cancelled: byHand = 0 } = await statuses();
  expect(expired + byHand).toBe(3_000);
  expect(byHand).toBeGreaterThanOrEqual(inTime.length);
  const { rows } = await service.db.query("SELECT type, count(*)::int FROM event GROUP BY 1 ORDER BY 1");
  expect(Object.fromEntries(rows.map(({ type, count }) => [type, count]))).toEqual({
    "verification.expired": expired,
    "verification.cancelled": byHand,
  });
  await Promise.all(others.map((other) => other.close()));
});

test("a locked verification expires once it is unlocked, and does not delay any others", async () => {
  await Promise.all(Array.from({ length: 40 }, create));
  await service.db.query(copies, [29]);
  const { rows } = await service.db.query(
    "SELECT id FROM verification WHERE status = 'pending' ORDER BY id LIMIT 1",
  );
  const held = rows[0].id;
  const holder = await holdUntilDue([held]);
  await moveExpiry(service.db, {
    expiresAt: "(SELECT expires_at FROM verification WHERE id = $1) + make_interval(secs => 0.1 + random())",
    where: "status = 'pending' AND id <> $1",
    values: [held],
  });
  await vi.waitUntil(async () => (await statuses()).pending === 1, { timeout: 45_000, interval: 20 });

  await holder.query("COMMIT");
  holder.release();
  await vi.waitUntil(async () => (await statuses()).pending === undefined, {
    timeout: 45_000,
    interval: 20,
  });
});

test("after the clock is set back, as by a standby that takes over, the recorded position goes back, too", async () => {
  await service.db.query(
    "UPDATE retention_progress SET done_up_to = (now() + interval '1 hour')::text WHERE task = 'expire'",
  );
  await vi.waitUntil(async () => (await lookedUpTo()) <= Date.now(), { timeout: 45_000, interval: 20 });
});

test("while an open transaction holds the recorded position back, everything due still expires", async () => {
  const quiet = await startTestService({ ROLES: "api" });
  const database = openDatabase({ connectionString: quiet.databaseUrl }, { poolSize: 1, onError: () => {} });
  const { rows } = await quiet.db.query("SELECT (now() - interval '10 minutes')::text AS then");
  const expireDue = createExpireDue(database, { commitHorizon: async () => rows[0].then });
  const shop = merchant(quiet.httpUrl, (await quiet.createProject()).liveKey);
  await createPending(shop);
  await quiet.db.query(copies, [1_999]);
  await moveExpiry(quiet.db, {
    expiresAt: "now() - make_interval(secs => random() * 60)",
    where: "status = 'pending'",
  });
  const pending = async () =>
    (await quiet.db.query("SELECT FROM verification WHERE status = 'pending'")).rowCount;
  let statements = 0;
  for (; (await pending()) !== 0 && statements < 10; statements++) await expireDue();
  expect(await pending()).toBe(0);
  expect(statements).toBeGreaterThan(2);
  await database.close();
});

test("while the position is held back, old and new due verifications expire, however many rows lie between", async () => {
  const quiet = await startTestService({ ROLES: "api" });
  const database = openDatabase({ connectionString: quiet.databaseUrl }, { poolSize: 1, onError: () => {} });
  const { rows } = await quiet.db.query("SELECT (now() - interval '10 minutes')::text AS then");
  let settled: string = rows[0].then;
  const expireDue = createExpireDue(database, { commitHorizon: async () => settled });
  const shop = merchant(quiet.httpUrl, (await quiet.createProject()).liveKey);
  const [newest, oldest] = [await createPending(shop), await createPending(shop)];
  const expire = (id: string, expiresAt: string) =>
    moveExpiry(quiet.db, { expiresAt, where: "id = $1", values: [uuidOf(id)] });
  // Codes of verifications that have ended.
  await quiet.db.query(
    `INSERT INTO live_code (destination, code, code_format, verification_id, expires_at)
     SELECT '0209999999', lpad(n::text, 8, '0'), 'numeric', gen_random_uuid(),
       date_trunc('milliseconds', now() - interval '1 minute' + make_interval(secs => n / 1000.0))
     FROM generate_series(1, 40000) n`,
  );
  await quiet.db.query("UPDATE retention_progress SET done_up_to = '-infinity' WHERE task = 'expire'");
  await expire(newest.id, "now() - interval '1 second'");
  let now = performance.now();
  const clock = vi.spyOn(performance, "now").mockImplementation(() => now);
  onTestFinished(() => clock.mockRestore());
  /** Within this many batches, each of which takes more than half of the interval for looking back. */
  const expiresWithin = async (id: string, batches: number) => {
    for (let batch = 0; batch < batches; batch++) {
      now += 1_100;
      await expireDue();
    }
    expect(await eventsOf(quiet.db, id)).toEqual(["verification.expired"]);
  };
  await expiresWithin(newest.id, 20);
  await expire(oldest.id, "now() - interval '50 seconds'");
  await expiresWithin(oldest.id, 40);

  settled = (await quiet.db.query("SELECT now()::text AS now")).rows[0].now;
  await expiresWithin(oldest.id, 40);
  const { rows: done } = await quiet.db.query(
    "SELECT done_up_to::timestamptz = (SELECT max(expires_at) FROM live_code) AS done FROM retention_progress WHERE task = 'expire'",
  );
  expect(done).toEqual([{ done: true }]);
  await database.close();
});

test("the recorded position stays before everything that may still be committed", async () => {
  const quiet = await startTestService({ ROLES: "api" });
  const database = openDatabase({ connectionString: quiet.databaseUrl }, { poolSize: 1, onError: () => {} });
  const ago = async (interval: string) =>
    (await quiet.db.query(`SELECT (now() - interval '${interval}')::text AS then`)).rows[0].then;
  let settled = await ago("2 minutes");
  await quiet.db.query("UPDATE retention_progress SET done_up_to = '-infinity' WHERE task = 'expire'");
  const expireDue = createExpireDue(database, { commitHorizon: async () => settled });
  const shop = merchant(quiet.httpUrl, (await quiet.createProject()).liveKey);
  const dueSince = async (interval: string) => {
    const pending = await createPending(shop);
    await quiet.db.query(moving, [uuidOf(pending.id), await ago(interval)]);
    return pending.id;
  };
  const moving = `WITH v AS (UPDATE verification SET created_at = $2::timestamptz - interval '1 minute', expires_at = $2 WHERE id = $1)
    UPDATE live_code SET expires_at = $2 WHERE verification_id = $1`;

  const early = await dueSince("10 seconds");
  expect(await expireDue()).toBe(false);
  expect(await eventsOf(quiet.db, early)).toEqual(["verification.expired"]);
  // It was due before the other, but becomes visible only now.
  const late = await dueSince("50 seconds");
  const eventsAfterALook = async () => {
    await expireDue();
    return eventsOf(quiet.db, late);
  };
  await expect.poll(eventsAfterALook, { timeout: 45_000 }).toEqual(["verification.expired"]);

  settled = await ago("0 seconds");
  await createExpireDue(database, { commitHorizon: async () => settled })();
  const { rows } = await quiet.db.query(
    "SELECT done_up_to::timestamptz = (SELECT max(expires_at) FROM live_code) AS done FROM retention_progress WHERE task = 'expire'",
  );
  expect(rows).toEqual([{ done: true }]);
  await database.close();
});
