import { type ChildProcess, spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import path from "node:path";
import { afterAll, afterEach, beforeAll, describe, expect, test, vi } from "vitest";
import { decodeId, encodeId } from "../../src/core/ids.ts";
import { Environment } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { WebhookDeliveryState, WebhookService } from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { type Database, openDatabase } from "../../src/storage/database.ts";
import { createWebhookDeliveries, type WebhookDeliveries } from "../../src/storage/webhook-deliveries.ts";
import { startDatabaseProxy } from "../faults/database-proxy.ts";
import { atFileEnd } from "../harness/endings.ts";
import { plainEnvironment } from "../harness/environment.ts";
import { startTestService, type TestService } from "../harness/service.ts";
import { raceTo, untilWaiting } from "../service/barrier.ts";
import { answerWith, hang, startReceiver, untilReceived } from "./receiver.ts";
import {
  cancelledCopies,
  delivered,
  deliveriesOf,
  deliveryWhen,
  endLease,
  everything,
  openShop,
} from "./shop.ts";

const program = path.join(import.meta.dirname, "../../bin/start.mjs");

let service: TestService;
const children: ChildProcess[] = [];

/** As which the workers connect, so that the server shows which connections are theirs. */
const workersLogin = `worker_${randomUUID().slice(0, 8)}`;

/** An API process only: the tests start and kill their own workers. */
beforeAll(async () => {
  service = await startTestService({ ROLES: "api", WEBHOOK_ALLOW_PRIVATE: "true" });
  await service.db.query(`CREATE ROLE ${workersLogin} LOGIN SUPERUSER PASSWORD 'known'`);
  atFileEnd(() => service.db.query(`DROP ROLE ${workersLogin}`));
});

afterEach(async () => {
  await Promise.all(children.splice(0).map(kill));
});

function startWorker(): ChildProcess {
  const url = Object.assign(new URL(service.databaseUrl), { username: workersLogin, password: "known" });
  const child = spawn(process.execPath, [program], {
    stdio: "ignore",
    env: plainEnvironment({
      ROLES: "worker",
      OPS_PORT: "0",
      DATABASE_URL: url.href,
      WEBHOOK_ALLOW_PRIVATE: "true",
      LOG_LEVEL: "silent",
    }),
  });
  children.push(child);
  return child;
}

/** What it had sent to the database may be carried out after its death: waits for that, too. */
async function kill(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  child.kill("SIGKILL");
  await once(child, "exit");
  const connections = "SELECT FROM pg_stat_activity WHERE usename = $1";
  await vi.waitUntil(async () => (await service.db.query(connections, [workersLogin])).rowCount === 0, {
    timeout: 45_000,
    interval: 5,
  });
}

const eventOf = (verificationId: string) => verificationId.replace("vrf_", "evt_");

async function leaseSeconds(verificationId: string): Promise<number> {
  const { rows } = await service.db.query(
    "SELECT extract(epoch FROM next_attempt_at - now())::float8 AS seconds FROM webhook_delivery WHERE verification_id = $1",
    [decodeId("vrf_", verificationId)],
  );
  return rows[0].seconds;
}

test("an attempt cut off by a killed worker is made again after its lease, with the same webhook-id", async () => {
  const shop = await openShop(service);
  const receiver = await startReceiver(hang);
  await shop.setWebhook(receiver.url);
  const id = await shop.event();
  const worker = startWorker();
  await untilReceived(receiver);
  await kill(worker);

  const [cutOff] = await deliveriesOf(service, id);
  expect(cutOff?.attempts).toMatchObject([{ number: 1, status: 0, error: "" }]);
  expect(cutOff?.attempts[0]?.duration).toBeUndefined();
  // Within 60 s even of an immediate restart, including a second for the job's interval.
  expect(await leaseSeconds(id)).toBeLessThan(59);

  receiver.answer = (response) => response.writeHead(204).end();
  await endLease(service, id);
  const lost = { number: 1, status: 0, error: "cut off: what came of it is not known" };
  expect(await deliveriesOf(service, id)).toMatchObject([{ attempts: [lost] }]);
  const next = await service.startAnother({ ROLES: "worker" });
  const { attempts } = await deliveryWhen(service, id, delivered);
  expect(attempts).toMatchObject([lost, { number: 2, status: 204 }]);
  expect(receiver.received.map(({ headers }) => headers["webhook-id"])).toEqual([eventOf(id), eventOf(id)]);
  await next.close();
});

test("workers killed repeatedly lose no event, and record attempts before sending them", async () => {
  const shop = await openShop(service);
  const receiver = await startReceiver();
  await shop.setWebhook(receiver.url);
  const { rows: due } = await service.db.query(
    `WITH ${cancelledCopies(199)},
     due AS (
       INSERT INTO webhook_delivery (verification_id, webhook_configuration_id, state, attempts, next_attempt_at)
       SELECT id, webhook_configuration_id, 'pending', 0, now() FROM made
     )
     SELECT id FROM made UNION ALL SELECT $1`,
    [decodeId("vrf_", await shop.event())],
  );
  const uuids = due.map(({ id }) => id);
  expect(uuids).toHaveLength(200);
  for (const after of [1, 40, 90]) {
    const worker = startWorker();
    await untilReceived(receiver, after);
    await kill(worker);
  }
  const last = await service.startAnother({ ROLES: "worker" });
  // Ends the leases of the attempts that were cut off.
  await service.db.query("UPDATE webhook_delivery SET next_attempt_at = now() WHERE state = 'pending'");
  const isDelivered = "SELECT FROM webhook_delivery WHERE state = 'delivered' AND verification_id = ANY ($1)";
  await vi.waitUntil(async () => (await service.db.query(isDelivered, [uuids])).rowCount === 200, {
    timeout: 45_000,
  });
  const sent = receiver.received.map(({ headers }) => String(headers["webhook-id"]));
  expect([...new Set(sent)].sort()).toEqual(uuids.map((id) => encodeId("evt_", id)).sort());
  const { rows } = await service.db.query(
    "SELECT count(*)::int AS attempts FROM webhook_attempt WHERE verification_id = ANY ($1)",
    [uuids],
  );
  // An attempt is recorded before it is sent, so there may be more records than requests, but never fewer.
  expect(rows[0].attempts).toBeGreaterThanOrEqual(sent.length);
  await last.close();
});

test("a claim whose answer is lost is undone: the attempt is made at once, with number 1", async () => {
  const shop = await openShop(service);
  const receiver = await startReceiver();
  await shop.setWebhook(receiver.url);
  const ids = await Promise.all(Array.from({ length: 3 }, () => shop.event()));
  const { hostname: host, port } = new URL(service.databaseUrl);
  const network = await startDatabaseProxy({ host, port: Number(port) });
  try {
    const cut = network.cutAt(["claim_webhook_attempts"], "answered");
    const distant = Object.assign(new URL(service.databaseUrl), { host: `127.0.0.1:${network.port}` });
    const worker = await service.startAnother({ ROLES: "worker", DATABASE_URL: distant.href });
    await cut;
    for (const id of ids) {
      const { attempts } = await deliveryWhen(service, id, delivered);
      // If the lost claim stood, this would be attempt 2, after a lease.
      expect(attempts).toMatchObject([{ number: 1, status: 204 }]);
    }
    expect(receiver.received.map(({ headers }) => headers["webhook-id"]).sort()).toEqual(
      ids.map(eventOf).sort(),
    );
    await worker.close();
  } finally {
    await network.close();
  }
});

describe("claims and results through the storage layer", () => {
  let database: Database;
  let deliveries: WebhookDeliveries;

  beforeAll(() => {
    const connection = { connectionString: service.databaseUrl };
    database = openDatabase(connection, { poolSize: 1, onError: () => {} });
    deliveries = createWebhookDeliveries(database, { onDisabled: () => {} });
  });

  afterAll(() => database.close());

  /** Claims a new event's attempt; returns the fields of its result that do not depend on the outcome. */
  async function underWay() {
    const shop = await openShop(service);
    await shop.setWebhook("http://127.0.0.1:1/hook");
    const id = await shop.event();
    const { attempts } = await deliveries.claim(everything);
    const due = attempts.find(({ verificationId }) => verificationId === decodeId("vrf_", id));
    if (!due) throw new Error("it was not due");
    const { verificationId, number, resends } = due;
    return { shop, id, result: { verificationId, number, resends, durationMs: 1, answer: "", gone: false } };
  }

  test("a claim whose answer is read after its lease makes no attempt: another worker may have made it", async () => {
    const shop = await openShop(service);
    await shop.setWebhook("http://127.0.0.1:1/hook");
    await shop.event();
    const now = performance.now.bind(performance);
    let ahead = 0;
    const clock = vi.spyOn(performance, "now").mockImplementation(() => now() + ahead);
    const holder = await service.db.connect();
    try {
      await holder.query("BEGIN; LOCK TABLE webhook_attempt IN SHARE MODE");
      const claiming = deliveries.claim(everything);
      await untilWaiting(service.db, 1);
      ahead = 30_000;
      await holder.query("ROLLBACK");
      expect(await claiming).toEqual({ attempts: [], heldBack: 0 });
    } finally {
      clock.mockRestore();
      holder.release(true);
    }
  });

  async function stored(verificationId: string) {
    const { rows } = await service.db.query(
      "SELECT state, attempts::int, failures::int, next_attempt_at <= now() AS due FROM webhook_delivery WHERE verification_id = $1",
      [verificationId],
    );
    return rows[0];
  }

  test("a result recorded twice is counted once", async () => {
    const { result } = await underWay();
    const failed = { ...result, status: 500, error: "answered 500", retryInSeconds: 3_600 };
    await Promise.all([deliveries.record(failed), deliveries.record(failed)]);
    await deliveries.record(failed);
    expect(await stored(result.verificationId)).toEqual({
      state: "pending",
      attempts: 1,
      failures: 1,
      due: false,
    });
  });

  test("a third failure recorded twice does not count as a fourth, which would disable the webhook", async () => {
    const { result } = await underWay();
    const { rows } = await service.db.query(
      `WITH tried AS (
         UPDATE webhook_delivery SET failures = 2 WHERE verification_id = $1 RETURNING webhook_configuration_id
       )
       UPDATE webhook_configuration SET failing_since = now() - interval '6 days'
       WHERE id = (SELECT webhook_configuration_id FROM tried) RETURNING id`,
      [result.verificationId],
    );
    const failed = { ...result, status: 500, error: "answered 500", retryInSeconds: 3_600 };
    for (let time = 0; time < 2; time++) await deliveries.record(failed);
    expect(await stored(result.verificationId)).toMatchObject({ state: "pending", failures: 3 });
    const webhook = await service.db.query("SELECT disabled_at FROM webhook_configuration WHERE id = $1", [
      rows[0].id,
    ]);
    expect(webhook.rows).toEqual([{ disabled_at: null }]);
  });

  test.for([
    {
      name: "the first failure of its webhook",
      before: null,
      meanwhile: "now()",
      reason: "the endpoint answered 410 Gone",
    },
    { name: "setting the webhook again", before: "now() - interval '1 h'", meanwhile: null, reason: null },
  ])("a 410, if $name commits between its read and its lock: disabled_reason is $reason", async (row) => {
    const { id, result } = await underWay();
    const failing = (since: string | null) =>
      `UPDATE webhook_configuration SET failing_since = ${since} WHERE id = (
         SELECT webhook_configuration_id FROM webhook_delivery WHERE verification_id = '${decodeId("vrf_", id)}'
       ) RETURNING id`;
    await service.db.query(failing(row.before));
    const other = await service.db.connect();
    try {
      await other.query("BEGIN");
      const { rows } = await other.query(failing(row.meanwhile));
      const gone = { status: 410, error: "answered 410", gone: true, retryInSeconds: 3_600 };
      const recording = deliveries.record({ ...result, ...gone });
      await untilWaiting(service.db, 1);
      await other.query("COMMIT");
      await recording;
      const storedState = await service.db.query(
        "SELECT disabled_at IS NOT NULL AS disabled, disabled_reason AS reason FROM webhook_configuration WHERE id = $1",
        [rows[0].id],
      );
      expect(storedState.rows).toEqual([{ disabled: row.reason !== null, reason: row.reason }]);
    } finally {
      other.release(true);
    }
  });

  test.for([
    {
      name: "a success, ends the period of failures",
      before: "now() - interval '6 days'",
      error: null,
      since: false,
    },
    { name: "a failure, begins one", before: null, error: "answered 500", since: true },
  ])("$name also for the version of a secret that is being rotated", async ({ before, error, since }) => {
    const { shop, result } = await underWay();
    const project = [decodeId("prj_", shop.projectId)];
    await service.db.query(
      `UPDATE webhook_configuration SET failing_since = ${before} WHERE project_id = $1`,
      project,
    );
    await raceTo(service.db, "webhook_configuration", [
      () => shop.rotateSecret(),
      () =>
        deliveries.record({ ...result, status: error ? 500 : 204, error, retryInSeconds: error ? 5 : null }),
    ]);
    const { rows } = await service.db.query(
      "SELECT failing_since IS NOT NULL AS since FROM webhook_configuration WHERE project_id = $1",
      project,
    );
    expect(rows).toEqual([{ since }, { since }]);
  });

  test("a webhook that a result disables while it is being set again sends only what happens from then on", async () => {
    const shop = await openShop(service);
    const url = "http://127.0.0.1:1/hook";
    await shop.setWebhook(url);
    const earlier = await shop.event();
    const other = await service.db.connect();
    try {
      await other.query("BEGIN");
      await other.query(
        "UPDATE webhook_configuration SET disabled_at = now(), disabled_reason = 'gone' WHERE project_id = $1",
        [decodeId("prj_", shop.projectId)],
      );
      const setting = shop.setWebhook(url);
      await untilWaiting(service.db, 1);
      await other.query("COMMIT");
      await setting;
    } finally {
      other.release(true);
    }
    const states = [earlier, await shop.event()].map(
      async (id) => (await deliveriesOf(service, id))[0]?.state,
    );
    expect(await Promise.all(states)).toEqual([WebhookDeliveryState.DISABLED, WebhookDeliveryState.PENDING]);
  });

  test.for([
    { status: 204, error: null, retryInSeconds: null },
    { status: 500, error: "answered 500", retryInSeconds: 5 },
    { status: 500, error: "answered 500", retryInSeconds: null },
  ])("a result of $status does not undo a resend requested meanwhile", async (ending) => {
    const { id, result } = await underWay();
    await service.client(WebhookService).resendWebhookEvent({ eventId: eventOf(id) });
    // A resend clears the claim, so that a lost claim of the earlier attempt is not undone later.
    const { rows } = await service.db.query("SELECT claim FROM webhook_delivery WHERE verification_id = $1", [
      result.verificationId,
    ]);
    expect(rows).toEqual([{ claim: null }]);
    await deliveries.record({ ...result, ...ending });
    expect(await stored(result.verificationId)).toEqual({
      state: "pending",
      attempts: 1,
      failures: 0,
      due: true,
    });
  });
});

test("events that are due when their webhook is disabled are never sent", async () => {
  const shop = await openShop(service);
  const receiver = await startReceiver();
  await shop.setWebhook(receiver.url);
  const ids = await Promise.all(Array.from({ length: 20 }, () => shop.event()));
  await service
    .client(WebhookService)
    .disableWebhook({ projectId: shop.projectId, environment: Environment.LIVE });
  const worker = await service.startAnother({ ROLES: "worker" });
  await vi.waitUntil(
    async () => {
      const { rows } = await service.db.query(
        "SELECT count(*)::int FROM webhook_delivery WHERE state = 'disabled' AND attempts = 0 AND verification_id = ANY ($1)",
        [ids.map((id) => decodeId("vrf_", id))],
      );
      return rows[0].count === ids.length;
    },
    { timeout: 45_000, interval: 50 },
  );
  expect(receiver.received).toEqual([]);
  await worker.close();
});

test("setting a webhook again does not hold up results once it has gone on to more of the disabled deliveries", async () => {
  const shop = await openShop(service);
  const url = "http://127.0.0.1:1/hook";
  await shop.setWebhook(url);
  const id = decodeId("vrf_", await shop.event());
  const place = { projectId: shop.projectId, environment: Environment.LIVE };
  // The one whose result arrives is held back first, and one more than are held back at once are left.
  await service.db.query(
    `WITH ${cancelledCopies(5_000)},
     due AS (
       INSERT INTO webhook_delivery (verification_id, webhook_configuration_id, state, attempts, next_attempt_at)
       SELECT id, webhook_configuration_id, 'pending', 0, now() + interval '2 minutes' FROM made
     ),
     begun AS (UPDATE webhook_delivery SET attempts = 1, next_attempt_at = now() + interval '1 minute' WHERE verification_id = $1)
     INSERT INTO webhook_attempt (verification_id, number, started_at) VALUES ($1, 1, now())`,
    [id],
  );
  const database = openDatabase({ connectionString: service.databaseUrl }, { poolSize: 1, onError() {} });
  const { record } = createWebhookDeliveries(database, { onDisabled() {} });
  const [disabling, holder] = [await service.db.connect(), await service.db.connect()];
  // Stops whoever goes on after some have been held back.
  await service.db.query(`
    CREATE FUNCTION stop_going_on() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      IF current_query() LIKE '%waiting AS%' AND EXISTS (
        SELECT FROM webhook_delivery WHERE verification_id = '${id}' AND state = 'disabled'
      ) THEN PERFORM pg_advisory_xact_lock_shared(4713); END IF;
      RETURN NULL;
    END $$;
    CREATE TRIGGER stop_going_on BEFORE UPDATE ON webhook_delivery EXECUTE FUNCTION stop_going_on()`);
  try {
    await holder.query("SELECT pg_advisory_lock(4713)");
    await disabling.query("BEGIN");
    const project = [decodeId("prj_", shop.projectId)];
    await disabling.query("SELECT FROM project WHERE id = $1 FOR NO KEY UPDATE", project);
    const setting = service.client(WebhookService).setWebhook({ ...place, url, events: [] });
    setting.catch(() => {});
    await untilWaiting(service.db, 1);
    const disabled =
      "UPDATE webhook_configuration SET disabled_at = now(), disabled_reason = 'gone' WHERE project_id = $1";
    await disabling.query(disabled, project);
    await disabling.query("COMMIT");
    await untilWaiting(service.db, 1);
    await record({
      ...{ verificationId: id ?? "", number: 1, resends: 0, durationMs: 1, answer: "", gone: false },
      ...{ status: 204, error: null, retryInSeconds: null },
    });
    await holder.query("SELECT pg_advisory_unlock(4713)");
    await setting;
  } finally {
    disabling.release(true);
    holder.release(true);
    await service.db.query("DROP FUNCTION stop_going_on CASCADE");
    await database.close();
  }
  const { rows } = await service.db.query(
    `SELECT d.state::text, count(*)::int FROM webhook_delivery d JOIN verification v ON v.id = d.verification_id
     WHERE v.project_id = $1 GROUP BY 1 ORDER BY 1`,
    [decodeId("prj_", shop.projectId)],
  );
  expect(rows).toEqual([
    { state: "delivered", count: 1 },
    { state: "disabled", count: 5_000 },
  ]);
});

describe("an event that was pending when its webhook was disabled", () => {
  const held = WebhookDeliveryState.DISABLED;

  async function disabledWith(count: number) {
    const shop = await openShop(service);
    const receiver = await startReceiver(answerWith(204));
    await shop.setWebhook(receiver.url);
    const ids = await Promise.all(Array.from({ length: count }, () => shop.event()));
    await service
      .client(WebhookService)
      .disableWebhook({ projectId: shop.projectId, environment: Environment.LIVE });
    return { shop, receiver, ids };
  }

  test("is sent only by a resend after the webhook is set again", async () => {
    const { shop, receiver, ids } = await disabledWith(20);
    await shop.setWebhook(receiver.url);
    const worker = await service.startAnother({ ROLES: "worker" });
    await deliveryWhen(service, await shop.event(), delivered);
    for (const id of ids) expect((await deliveriesOf(service, id))[0]?.state).toBe(held);
    expect(receiver.received).toHaveLength(1);
    const [first = ""] = ids;
    await service.client(WebhookService).resendWebhookEvent({ eventId: eventOf(first) });
    await deliveryWhen(service, first, delivered);
    await worker.close();
  });

  test("stays disabled if it is being claimed while the webhook is set again", async () => {
    const { shop, receiver, ids } = await disabledWith(3);
    const [first = ""] = ids;
    const claiming = await service.db.connect();
    try {
      await claiming.query("BEGIN");
      await claiming.query(
        "UPDATE webhook_delivery SET attempts = 1, next_attempt_at = now() + interval '30 s' WHERE verification_id = $1",
        [decodeId("vrf_", first)],
      );
      const setting = shop.setWebhook(receiver.url);
      await untilWaiting(service.db, 1);
      await claiming.query("COMMIT");
      await setting;
    } finally {
      claiming.release(true);
    }
    for (const id of ids) expect((await deliveriesOf(service, id))[0]?.state).toBe(held);
  });

  test.for([
    { by: "an administrator", locked: "project WHERE id" },
    { by: "a result", locked: "webhook_configuration WHERE project_id" },
  ])("stays disabled if the webhook is disabled by $by while it is being set again", async ({ locked }) => {
    const shop = await openShop(service);
    await shop.setWebhook("http://127.0.0.1:1/hook");
    const id = await shop.event();
    const project = [decodeId("prj_", shop.projectId)];
    const disabling = await service.db.connect();
    try {
      await disabling.query("BEGIN");
      await disabling.query(`SELECT FROM ${locked} = $1 FOR NO KEY UPDATE`, project);
      const setting = shop.setWebhook("http://127.0.0.1:1/hook");
      await untilWaiting(service.db, 1);
      await disabling.query(
        "UPDATE webhook_configuration SET disabled_at = now(), disabled_reason = 'gone' WHERE project_id = $1",
        project,
      );
      await disabling.query("COMMIT");
      await setting;
    } finally {
      disabling.release(true);
    }
    expect((await deliveriesOf(service, id))[0]?.state).toBe(held);
  });
});

test("a graceful shutdown waits for an attempt that is about to be answered, and records its result", async () => {
  const shop = await openShop(service);
  const answer = Promise.withResolvers<() => void>();
  const receiver = await startReceiver((response) => answer.resolve(() => response.writeHead(204).end()));
  await shop.setWebhook(receiver.url);
  const worker = await service.startAnother({ ROLES: "worker" });
  const id = await shop.event();
  const end = await answer.promise;
  const closing = worker.close();
  end();
  await closing;
  const [delivery] = await deliveriesOf(service, id);
  expect(delivery && delivered(delivery)).toBe(true);
});

test("a graceful shutdown leaves a hanging attempt to its lease after a short grace period", async () => {
  const shop = await openShop(service);
  const receiver = await startReceiver(hang);
  await shop.setWebhook(receiver.url);
  const worker = await service.startAnother({ ROLES: "worker" });
  const id = await shop.event();
  await untilReceived(receiver);
  await worker.close();
  // The shutdown did not wait for the timeout of 15 s, which would be recorded here.
  const [delivery] = await deliveriesOf(service, id);
  expect(delivery?.attempts).toMatchObject([{ number: 1, status: 0, error: "" }]);
  expect(delivery?.nextAttemptAt).toBeDefined();
  expect(await leaseSeconds(id)).toBeLessThan(60);
  // Its result is unknown, so it does not count as a failure.
  const { rows } = await service.db.query(
    "SELECT failures::int FROM webhook_delivery WHERE verification_id = $1",
    [decodeId("vrf_", id)],
  );
  expect(rows).toEqual([{ failures: 0 }]);
});
