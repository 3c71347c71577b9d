import { afterAll, beforeEach, describe, expect, onTestFinished, test, vi } from "vitest";
import { lastUuid } from "../../src/core/ids.ts";
import { commitHorizon } from "../../src/storage/commit-horizon.ts";
import { openDatabase } from "../../src/storage/database.ts";
import { createExpireDue } from "../../src/storage/expiry.ts";
import { createRetentionTasks, type RetentionTask } from "../../src/storage/retention.ts";
import { type ClockJump, createRetentionClock } from "../../src/storage/retention-clock.ts";
import { merchant, newIdempotencyKey } from "../gateway/merchant.ts";
import { byTheClock, clockIsSteady, installClock, moveClock, stopClock } from "../harness/clock.ts";
import { createDatabase } from "../harness/database.ts";
import { tablesWith as everyTableWith } from "../harness/every-table.ts";
import { startTestService } from "../harness/service.ts";
import { scrape } from "../ops/scrape.ts";
import { openShop } from "../webhooks/shop.ts";
import { untilWaiting } from "./barrier.ts";
import { createPending, eventsOf, uuidOf } from "./pending.ts";

const day = 86_400_000;
const holder = "01087650001";
const expected = "01087650002";
const stranger = "01087650003";

const plain = await startTestService({ ROLES: "api" });
await installClock(plain.db);
const service = await plain.startAnother({ ROLES: "api", DATABASE_URL: byTheClock(plain.databaseUrl) });
const project = await service.createProject();
const shop = merchant(service.httpUrl, project.liveKey);

const database = openDatabase(
  { connectionString: byTheClock(plain.databaseUrl) },
  { poolSize: 1, onError: () => {} },
);
/** Created again each time, because it remembers the time for ten seconds, and the tests move the clock by days. */
const expireDue = () => createExpireDue(database, { commitHorizon: () => commitHorizon(database) })();
afterAll(() => database.close());

const tablesWith = (text: string) => everyTableWith(plain.db, text);

async function count(table: string): Promise<number> {
  const { rows } = await plain.db.query(`SELECT count(*)::int AS count FROM ${table}`);
  return rows[0].count;
}

/** Starts a worker, which does a round at its start, and waits until the round has had its effect. */
async function roundUntil(condition: () => Promise<boolean>): Promise<void> {
  await clockIsSteady(plain.db);
  const worker = await plain.startAnother({ ROLES: "worker", DATABASE_URL: byTheClock(plain.databaseUrl) });
  await vi.waitUntil(condition, { timeout: 45_000, interval: 20 });
  await worker.close();
}

const tasks = createRetentionTasks(database, { unmatchedDays: 7, finishedDays: 90, statisticsDays: 400 });

async function everyTask(): Promise<void> {
  await clockIsSteady(plain.db);
  for (const task of tasks) while (await task.work());
}

// In this order: the clock only goes on, and what earlier tests have left is counted.
describe("as time passes", { shuffle: false }, () => {
  test("expired data is deleted, other data is kept, and the API still answers", async () => {
    const verified = await createPending(shop);
    await service.sms({ to: verified.to, from: holder, text: verified.text, messageId: "matched" });
    const mismatched = await createPending(shop, { mode: "match", expected_phone: expected });
    await service.sms({ to: mismatched.to, from: stranger, text: mismatched.text, messageId: "mismatched" });
    await service.sms({ to: verified.to, from: stranger, text: "secret-text", messageId: "unmatched" });
    await shop.cancel(mismatched.id);
    expect(await tablesWith(holder)).toEqual(["inbound_message", "verification"]);
    expect(await tablesWith(stranger)).toContain("inbound_sender");
    expect(await count("pending_hint")).toBe(1);
    await plain.db.query(
      "INSERT INTO creation_trace (verification_id, traceparent) VALUES ($1, '00-' || repeat('a', 32) || '-' || repeat('b', 16) || '-01')",
      [uuidOf(verified.id)],
    );
    // As version 0.1.0 wrote it.
    await plain.db.query(
      "INSERT INTO window_token (digest, verification_id, delete_after) VALUES (sha256('token'), $1, now() + interval '1 day')",
      [uuidOf(verified.id)],
    );

    await moveClock(plain.db, 2 * day);
    // Codes are kept until the expiry has passed them.
    await expireDue();
    await roundUntil(async () => (await count("inbound_sender")) === 0);
    expect(await count("idempotency_record")).toBe(0);
    expect(await count("live_code")).toBe(0);
    expect(await count("window_token")).toBe(0);
    expect(await count("pending_hint")).toBe(0);
    expect(await count("message_fingerprint")).toBe(0);
    expect(await count("creation_trace")).toBe(1);
    expect(await tablesWith("secret-text")).toEqual(["inbound_message"]);

    await moveClock(plain.db, 6 * day);
    await roundUntil(async () => (await tablesWith("secret-text")).length === 0);
    // An endpoint may have delayed its last attempt until now.
    expect(await count("creation_trace")).toBe(1);
    expect(await tablesWith(holder)).toEqual(["inbound_message", "verification"]);
    expect(
      await service.sms({ to: verified.to, from: stranger, text: "new", messageId: "unmatched" }),
    ).toMatchObject([{ outcome: "NO_MATCH", duplicate: true }]);

    await moveClock(plain.db, 83 * day);
    await roundUntil(async () => (await tablesWith(holder)).length === 0);
    expect(await count("creation_trace")).toBe(0);
    for (const phone of [holder, expected, stranger]) expect(await tablesWith(phone)).toEqual([]);
    const { status, body } = await shop.read(verified.id);
    expect(status).toBe(200);
    expect(body).toMatchObject({ id: verified.id, status: "verified", phone: null, carrier: "SKT" });
    expect(body.verified_at).not.toBeNull();
    expect(
      await service.sms({ to: verified.to, from: holder, text: "new", messageId: "matched" }),
    ).toMatchObject([{ outcome: "VERIFIED", verificationId: verified.id, duplicate: true }]);

    await moveClock(plain.db, 31 * day);
    await roundUntil(async () => (await count("inbound_message")) === 0);
    const { rows } = await plain.db.query("SELECT status FROM verification WHERE id = $1", [
      uuidOf(mismatched.id),
    ]);
    expect(rows).toEqual([{ status: "cancelled" }]);
  });

  test("thousands of rows, of one instant and of many, are erased in one round by two workers at once", async () => {
    await plain.db.query(
      `INSERT INTO inbound_message (source, message_id, sender, destination, text, ingested_at, outcome, duplicate)
     SELECT 'cli', 'bulk-' || n, '01087650009', '0200000000', 'bulk',
       clock.now() - interval '20 days' + CASE WHEN n < 2500 THEN interval '0' ELSE make_interval(secs => n) END,
       'no_match', false
     FROM generate_series(1, 5000) n`,
    );
    const other = await plain.startAnother({ ROLES: "worker", DATABASE_URL: byTheClock(plain.databaseUrl) });
    await roundUntil(async () => (await tablesWith("01087650009")).length === 0);
    await other.close();
    expect(await count("inbound_message")).toBe(5000);
  });

  test("a metric tells when a worker last had nothing left to erase, and first when it started", async () => {
    const lock = await plain.db.connect();
    onTestFinished(() => lock.release(true));
    // The first round waits for this.
    await lock.query("BEGIN; LOCK TABLE idempotency_record IN SHARE MODE");
    const begunAt = Date.now() / 1_000;
    const worker = await plain.startAnother({ ROLES: "worker", DATABASE_URL: byTheClock(plain.databaseUrl) });
    const caughtUpAt = async () =>
      (await scrape(worker.opsUrl)).sum("phoneproof_retention_caught_up_timestamp_seconds");
    const startedAt = await caughtUpAt();
    expect(startedAt).toBeGreaterThanOrEqual(begunAt);
    await lock.query("COMMIT");
    await expect.poll(caughtUpAt).toBeGreaterThan(startedAt);
    await worker.close();
  });

  test("while another process does a pass, no other process reports it as finished", async () => {
    const passes = tasks.filter(({ name }) =>
      /^(erase|delete)_\w+_messages$|^erase_verifications$/.test(name),
    );
    expect(passes).toHaveLength(5);
    const answers = async () => {
      const found = [];
      for (const { work } of passes) found.push(await work());
      return found;
    };
    await everyTask();
    const client = await plain.db.connect();
    await client.query("BEGIN");
    await client.query("SELECT FROM retention_progress FOR UPDATE");
    expect(await answers()).toEqual(passes.map(() => null));
    await client.query("ROLLBACK");
    client.release();
    expect(await answers()).toEqual(passes.map(() => false));
  });

  test("hours of the statistics are deleted after their retention, thousands at once, and younger ones are kept", async () => {
    await plain.db.query(
      `INSERT INTO number_statistics (project_id, environment, hour, destination, created, verified, expired, cancelled, times_to_verify)
     SELECT (SELECT min(id::text)::uuid FROM project), 'live', date_trunc('hour', clock.now(), 'UTC') - make_interval(days => days, hours => 1), 'n' || n, 1, 0, 0, 0,
       array_fill(0, ARRAY[48])
     FROM (VALUES (399, 1), (400, 2500)) span (days, count), generate_series(1, count) n`,
    );
    await plain.db.query(
      `INSERT INTO carrier_statistics (project_id, environment, hour, carrier, verified, times_to_verify, fastest_bucket, slowest_bucket, last_verified_at)
     SELECT (SELECT min(id::text)::uuid FROM project), 'live', date_trunc('hour', clock.now(), 'UTC') - make_interval(days => days, hours => 1), 'KT', 1, array_fill(0, ARRAY[48]), 0, 0, clock.now()
     FROM unnest('{399,400}'::int[]) days`,
    );
    await plain.db.query(
      `INSERT INTO reception_statistics (environment, hour, kind, name, created, verified)
     SELECT environment, date_trunc('hour', clock.now(), 'UTC') - make_interval(days => days, hours => 1), 'number', 'n', 1, 0
     FROM unnest('{399,400}'::int[]) days, unnest(enum_range(NULL::environment)) environment`,
    );
    const old = (table: string) =>
      count(`${table} WHERE hour < date_trunc('hour', clock.now(), 'UTC') - interval '300 days'`);
    const left = async () =>
      Promise.all(["number_statistics", "carrier_statistics", "reception_statistics"].map(old));
    expect(await left()).toEqual([2501, 2, 4]);
    await roundUntil(async () => `${await left()}` === "1,1,2");
  });

  async function eraseDue(tasks: readonly RetentionTask[]): Promise<void> {
    await clockIsSteady(plain.db);
    for (const task of tasks.filter(({ name }) => name.startsWith("erase_"))) while (await task.work());
  }

  const tasksOf = (finishedDays: number) =>
    createRetentionTasks(database, { unmatchedDays: 7, finishedDays, statisticsDays: 400 });

  /** As if its event had just failed and is to be tried again. */
  async function isStillTried(id: string): Promise<void> {
    await plain.db.query(
      `WITH webhook AS (
       INSERT INTO webhook_configuration (id, project_id, environment, version, url, events, secret, replaced_at)
       SELECT gen_random_uuid(), v.project_id, v.environment,
         (SELECT count(*) + 1 FROM webhook_configuration), 'https://shop.example',
         '{verification.verified,verification.expired}', decode(repeat('00', 32), 'hex'), clock.now()
       FROM verification v WHERE v.id = $1 RETURNING id
     )
     INSERT INTO webhook_delivery (verification_id, webhook_configuration_id, state, attempts, next_attempt_at)
     SELECT $1, id, 'pending', 0, clock.now() + interval '1 hour' FROM webhook`,
      [uuidOf(id)],
    );
  }

  async function verifiedBy(phone: string) {
    const verification = await createPending(shop);
    const [receipt] = await service.sms({ to: verification.to, from: phone, text: verification.text });
    expect(receipt?.outcome).toBe("VERIFIED");
    return verification;
  }

  test("a pending verification past its expiry is expired before it is erased, even if the expiry job never reaches it", async () => {
    const tasks = tasksOf(90);
    const [waiting, lost, later] = ["01087650010", "01087650014", "01087650015"] as const;
    const late = await createPending(shop, { mode: "match", expected_phone: waiting });
    const forgotten = await createPending(shop, { mode: "match", expected_phone: lost });
    // As if the database's clock had been ahead, and with it the position of the expiry.
    await plain.db.query("DELETE FROM live_code WHERE verification_id = $1", [uuidOf(forgotten.id)]);
    await verifiedBy(later);
    // More than a batch that the pass is done with.
    await plain.db.query(
      `INSERT INTO verification (id, project_id, environment, mode, status, client_reference, state, destination, sms_text,
         created_at, expires_at)
       SELECT uuidv7(interval '-1000 days' + n * interval '1 second'), project_id, environment, mode, 'expired', '', '', destination, '',
         created_at - interval '1000 days', expires_at - interval '1000 days'
       FROM verification, generate_series(1, 1000) n WHERE id = $1`,
      [uuidOf(late.id)],
    );
    await moveClock(plain.db, 91 * day);
    // A row that another transaction has locked is waited for, and younger ones with it.
    const other = await plain.db.connect();
    await other.query("BEGIN");
    await other.query("SELECT 1 FROM verification WHERE id = $1 FOR UPDATE", [uuidOf(late.id)]);
    await eraseDue(tasks);
    await other.query("ROLLBACK");
    other.release();
    expect(await eventsOf(plain.db, late.id)).toEqual([]);
    for (const phone of [waiting, later]) expect(await tablesWith(phone)).toContain("verification");

    await eraseDue(tasks);
    for (const { id } of [late, forgotten]) {
      expect(await eventsOf(plain.db, id)).toEqual(["verification.expired"]);
      expect((await shop.read(id)).body.status).toBe("expired");
    }
    for (const phone of [lost, later]) expect(await tablesWith(phone)).toEqual([]);
    // Its code stays until the expiry has passed it, which finds nothing to do.
    const releaseCodes = () => tasks.find(({ name }) => name === "codes")?.work();
    await releaseCodes();
    expect(await tablesWith(waiting)).toEqual(["live_code"]);
    await expireDue();
    await releaseCodes();
    expect(await tablesWith(waiting)).toEqual([]);
    expect(await eventsOf(plain.db, late.id)).toEqual(["verification.expired"]);
  });

  describe("a database's clock that jumps", () => {
    const hour = 3_600_000;
    const isKept = async () => (await count("reception_statistics WHERE name = 'jump'")) > 0;
    const waits = async (worker: { readonly opsUrl: string }) =>
      (await scrape(worker.opsUrl)).sum("phoneproof_retention_waits");
    const startWorker = () =>
      plain.startAnother({ ROLES: "worker", DATABASE_URL: byTheClock(plain.databaseUrl) });

    /** Adds an hour of the statistics whose time is over after the jump. */
    async function jump(milliseconds: number): Promise<void> {
      await clockIsSteady(plain.db);
      await moveClock(plain.db, milliseconds);
      onTestFinished(() => moveClock(plain.db, -milliseconds));
      await plain.db.query(
        `INSERT INTO reception_statistics (environment, hour, kind, name, created, verified)
       VALUES ('live', date_trunc('hour', clock.now(), 'UTC') - interval '401 days', 'number', 'jump', 1, 0)`,
      );
    }

    test.each([
      ["ahead", day + 60_000],
      ["back", -day - 60_000],
    ])("%s by more than a day makes retention wait for an hour, also on workers that start later", async (_, milliseconds) => {
      await jump(milliseconds);
      onTestFinished(() => moveClock(plain.db, -hour));
      for (const since of [0, hour - 60_000]) {
        await moveClock(plain.db, since);
        const worker = await startWorker();
        await expect.poll(() => waits(worker)).toBe(1);
        await worker.close();
        expect(await isKept()).toBe(true);
      }
      await moveClock(plain.db, 60_000);
      const worker = await startWorker();
      await vi.waitUntil(async () => !(await isKept()), { timeout: 45_000 });
      expect(await waits(worker)).toBe(0);
      await worker.close();
    });

    test("just after retention has looked at it has nothing erased, even if another worker looks next", async () => {
      const phone = "01087650039";
      await verifiedBy(phone);
      await jump(91 * day);
      onTestFinished(async () => {
        await plain.db.query("DELETE FROM reception_statistics WHERE name = 'jump'");
      });
      const endRound = async () => {
        for (const task of tasks) await task.work();
        expect(await isKept()).toBe(true);
        expect(await tablesWith(phone)).toContain("verification");
      };
      await endRound();
      const worker = await startWorker();
      await expect.poll(() => waits(worker)).toBe(1);
      await worker.close();
      await endRound();
    });

    test("back, just after retention has looked at it, has nothing erased that the position is then ahead of", async () => {
      const phone = "01087650042";
      const { id } = await verifiedBy(phone);
      await isStillTried(id);
      await plain.db.query("UPDATE webhook_delivery SET state = 'delivered', next_attempt_at = NULL");
      onTestFinished(async () => {
        await plain.db.query("DELETE FROM webhook_delivery");
      });
      const {
        rows: [before],
      } = await plain.db.query(
        "SELECT done_up_to FROM retention_progress WHERE task = 'erase_verifications'",
      );
      const setPosition = (position: string) =>
        plain.db.query("UPDATE retention_progress SET done_up_to = $1 WHERE task = 'erase_verifications'", [
          position,
        ]);
      await clockIsSteady(plain.db);
      await moveClock(plain.db, -2 * day);
      onTestFinished(async () => {
        await moveClock(plain.db, 2 * day);
        await setPosition(before.done_up_to);
      });
      await setPosition(lastUuid);
      const triedLonger = tasks.find(({ name }) => name === "erase_tried_longer");
      expect(await triedLonger?.work()).toBeNull();
      expect(await tablesWith(phone)).toContain("verification");
      expect(await count("webhook_delivery")).toBe(1);
    });

    test("by less than a day makes nobody wait", async () => {
      await jump(day - 60_000);
      const worker = await startWorker();
      await vi.waitUntil(async () => !(await isKept()), { timeout: 45_000 });
      expect(await waits(worker)).toBe(0);
      await worker.close();
    });

    test.each([
      { name: "ahead", milliseconds: 30 * day, isReported: true },
      { name: "back", milliseconds: -30 * day, isReported: true },
      { name: "by less than a day", milliseconds: day / 2, isReported: false },
      {
        name: "ahead, with a verification since",
        milliseconds: 30 * day,
        createsMeanwhile: true,
        isReported: false,
      },
    ])("$name during an upgrade from a version that did not look at it makes retention wait, and is reported: $isReported", async ({
      milliseconds,
      createsMeanwhile,
      isReported,
    }) => {
      const { id } = await createPending(shop);
      const {
        rows: [newest],
      } = await plain.db.query("SELECT created_at FROM verification WHERE id = $1", [uuidOf(id)]);
      await moveClock(plain.db, milliseconds);
      onTestFinished(() => moveClock(plain.db, -milliseconds));
      if (createsMeanwhile) {
        const since = await createPending(shop);
        await plain.db.query("UPDATE verification SET created_at = clock.now() WHERE id = $1", [
          uuidOf(since.id),
        ]);
        onTestFinished(async () => {
          await plain.db.query("UPDATE verification SET created_at = now() WHERE id = $1", [
            uuidOf(since.id),
          ]);
        });
      }
      await plain.db.query("DELETE FROM retention_clock");
      const [onJump, onFirstReading, onWait] = [vi.fn<(jump: ClockJump) => void>(), vi.fn(), vi.fn()];
      const clock = createRetentionClock(database, { onJump, onFirstReading, onWait });
      expect([await clock.isSteady(), await clock.isSteady()]).toEqual([false, false]);
      expect(onFirstReading).toHaveBeenCalledTimes(isReported ? 0 : 1);
      expect(onJump.mock.calls.map(([{ from }]) => from)).toEqual(
        isReported ? [newest.created_at.toISOString()] : [],
      );
      expect(onWait.mock.calls.flat()).toEqual([isReported, isReported]);
      await moveClock(plain.db, hour);
      onTestFinished(() => moveClock(plain.db, -hour));
      expect(await clock.isSteady()).toBe(true);
    });

    test("makes nobody wait in a new database", async () => {
      const fresh = await createDatabase();
      const empty = openDatabase({ connectionString: fresh.url }, { poolSize: 1, onError: () => {} });
      onTestFinished(async () => {
        await empty.close();
        await fresh.drop();
      });
      const [onJump, onFirstReading, onWait] = [vi.fn(), vi.fn(), vi.fn()];
      expect(await createRetentionClock(empty, { onJump, onFirstReading, onWait }).isSteady()).toBe(true);
      expect([onJump, onFirstReading, onWait].map(({ mock }) => mock.calls)).toEqual([[], [], [[false]]]);
    });

    test("and is corrected in steps of less than a day makes retention wait for an hour after the last step, and is reported once", async () => {
      const [onJump, onWait] = [vi.fn<(jump: ClockJump) => void>(), vi.fn()];
      const clock = createRetentionClock(database, { onJump, onFirstReading: () => {}, onWait });
      await clockIsSteady(plain.db);
      await moveClock(plain.db, 3 * day);
      expect(await clock.isSteady()).toBe(false);
      for (let step = 0; step < 6; step++) {
        await moveClock(plain.db, -day / 2);
        expect(await clock.isSteady()).toBe(false);
      }
      await moveClock(plain.db, hour - 60_000);
      expect(await clock.isSteady()).toBe(false);
      await moveClock(plain.db, 60_000);
      onTestFinished(() => moveClock(plain.db, -hour));
      expect(await clock.isSteady()).toBe(true);
      expect(onJump).toHaveBeenCalledTimes(1);
    });

    test("is reported once by each process, with the times before and after", async () => {
      const [onJump, onWait] = [vi.fn<(jump: ClockJump) => void>(), vi.fn()];
      const clock = createRetentionClock(database, { onJump, onFirstReading: () => {}, onWait });
      await clockIsSteady(plain.db);
      expect(await clock.isSteady()).toBe(true);
      const { rows } = await plain.db.query("SELECT seen_at FROM retention_clock");
      const before: Date = rows[0].seen_at;
      await moveClock(plain.db, 30 * day);
      expect([await clock.isSteady(), await clock.isSteady()]).toEqual([false, false]);
      await moveClock(plain.db, -30 * day);
      expect(await clock.isSteady()).toBe(false);
      const [ahead, back] = onJump.mock.calls.map(([jump]) => jump);
      expect(onJump).toHaveBeenCalledTimes(2);
      expect(ahead?.from).toBe(before.toISOString());
      expect(Date.parse(ahead?.to ?? "") - before.getTime()).toBeGreaterThanOrEqual(30 * day);
      expect(Date.parse(back?.from ?? "")).toBeGreaterThanOrEqual(Date.parse(ahead?.to ?? ""));
      expect(onWait.mock.calls.flat()).toEqual([false, true, true, true]);
    });
  });

  describe("a database's clock that was wrong", () => {
    const endAllPending = () =>
      plain.db.query("UPDATE verification SET status = 'expired' WHERE status = 'pending'");

    test("erases nothing early where it stood at the beginning of 1970", async () => {
      const phone = "01087650030";
      await verifiedBy(phone);
      await endAllPending();
      await stopClock(plain.db, "1970-01-02T00:00:00Z");
      onTestFinished(() => stopClock(plain.db, null));
      await everyTask();
      expect(await tablesWith(phone)).toContain("verification");
    });

    test("mutes nobody an hour after it was corrected", async () => {
      const phone = "01087650033";
      await moveClock(plain.db, 60 * 60_000);
      for (let miss = 0; miss < 5; miss++)
        await service.sms({ to: project.liveNumber, from: phone, text: `a guess ${miss}` });
      await moveClock(plain.db, -60 * 60_000);
      expect(await tablesWith(phone)).toContain("inbound_sender");
      await everyTask();
      expect(await tablesWith(phone)).not.toContain("inbound_sender");
    });

    test("keeps no miss and no content from the time when it was ahead", async () => {
      const phone = "01087650034";
      await everyTask();
      await moveClock(plain.db, 60 * 60_000);
      await service.sms({ to: project.liveNumber, from: phone, text: "one guess" });
      await moveClock(plain.db, -60 * 60_000);
      const left = async () => [await tablesWith(phone), await count("message_fingerprint")];
      expect(await left()).toEqual([["inbound_message", "inbound_sender"], 1]);
      await everyTask();
      expect(await left()).toEqual([["inbound_message"], 0]);
    });

    test("keeps nothing for ever that was stored while it was behind the time up to which all is erased", async () => {
      const [before, meanwhile] = ["01087650031", "01087650032"] as const;
      await verifiedBy(before);
      await endAllPending();
      await moveClock(plain.db, 130 * day);
      await everyTask();
      expect(await tablesWith(before)).toEqual([]);

      await moveClock(plain.db, -140 * day);
      await everyTask();
      const { to } = await verifiedBy(meanwhile);
      await service.sms({ to, from: meanwhile, text: "no code" });
      expect(await tablesWith(meanwhile)).toContain("verification");

      await moveClock(plain.db, 140 * day);
      await endAllPending();
      await everyTask();
      expect(await tablesWith(meanwhile)).toEqual([]);
    });

    test("takes the positions of retention back with it before retention looks at it again", async () => {
      const { to } = await verifiedBy("01087650040");
      await service.sms({ to, from: "01087650041", text: "no code" });
      await endAllPending();
      let ahead = 0;
      const move = async (by: number) => {
        await moveClock(plain.db, by * day);
        ahead += by;
      };
      onTestFinished(() => move(-ahead));
      await move(130);
      await everyTask();
      const worker = await plain.startAnother({
        ROLES: "worker",
        DATABASE_URL: byTheClock(plain.databaseUrl),
      });
      onTestFinished(() => worker.close());
      const caughtUpAt = async () =>
        (await scrape(worker.opsUrl)).sum("phoneproof_retention_caught_up_timestamp_seconds");
      const startedAt = await caughtUpAt();
      await expect.poll(caughtUpAt).toBeGreaterThan(startedAt);
      // Their position shows that the clock was set back.
      const areStatisticsCounted = async () => {
        const { rows } = await plain.db.query(
          "SELECT min(counted_until) > clock.now() - interval '1 day' AS counted FROM statistics_progress",
        );
        return rows[0].counted;
      };
      await vi.waitUntil(areStatisticsCounted, { timeout: 45_000, interval: 20 });

      const positions = async () =>
        (
          await plain.db.query(
            "SELECT task, done_up_to FROM retention_progress WHERE done_up_to <> '-infinity' ORDER BY task",
          )
        ).rows;
      const reached = await positions();
      expect(reached.map(({ task }) => task)).toContain("erase_verifications");
      await move(-140);
      await vi.waitUntil(
        async () =>
          (await positions()).every(({ done_up_to }, index) => done_up_to !== reached[index].done_up_to),
        { timeout: 90_000 },
      );
      const { rows } = await plain.db.query("SELECT seen_at > clock.now() AS ahead FROM retention_clock");
      expect(rows).toEqual([{ ahead: true }]);
    });

    test("and is believed in the end has nothing skipped that became due before, as in a long time without a worker", async () => {
      const phone = "01087650043";
      await service.sms({ to: (await verifiedBy(phone)).to, from: phone, text: "no code" });
      await endAllPending();
      await everyTask();
      await moveClock(plain.db, 130 * day);
      onTestFinished(() => moveClock(plain.db, -130 * day));
      // As while retention waits.
      for (const task of tasks) await task.goBack?.();
      await everyTask();
      expect(await tablesWith(phone)).toEqual([]);
    });

    test("holds up no erasure with a verification stored by a clock that was ahead, with an id of the time before", async () => {
      const [expectedThen, later] = ["01087650037", "01087650038"] as const;
      // As processes up to 0.3.0 stored the first one after such a jump.
      const ahead = await createPending(shop, { mode: "match", expected_phone: expectedThen });
      await plain.db.query(
        `UPDATE verification SET created_at = created_at + interval '400 days', expires_at = expires_at + interval '400 days'
       WHERE id = $1`,
        [uuidOf(ahead.id)],
      );
      await plain.db.query(
        "UPDATE live_code SET expires_at = expires_at + interval '400 days' WHERE verification_id = $1",
        [uuidOf(ahead.id)],
      );
      onTestFinished(async () => {
        await plain.db.query("DELETE FROM idempotency_record WHERE verification_id = $1", [uuidOf(ahead.id)]);
      });
      await verifiedBy(later);
      expect((await shop.read(ahead.id)).body.status).toBe("pending");

      await moveClock(plain.db, 91 * day);
      onTestFinished(() => moveClock(plain.db, -91 * day));
      await everyTask();
      await everyTask();
      expect(await tablesWith(later)).toEqual([]);
      expect(await tablesWith(expectedThen)).not.toContain("verification");
      expect((await shop.read(ahead.id)).body.status).toBe("expired");
      expect(await eventsOf(plain.db, ahead.id)).toEqual(["verification.expired"]);
    });

    test("keeps nothing for ever either if it was corrected before retention believed it", async () => {
      const [before, meanwhile] = ["01087650035", "01087650036"] as const;
      await service.sms({ to: (await verifiedBy(before)).to, from: before, text: "no code" });
      await endAllPending();
      await moveClock(plain.db, 130 * day);
      onTestFinished(() => moveClock(plain.db, -130 * day));
      await everyTask();
      await clockIsSteady(plain.db);

      await moveClock(plain.db, -140 * day);
      // The last pass in the order of the tasks.
      const lastPosition = async () =>
        (await plain.db.query("SELECT done_up_to FROM retention_progress WHERE task = 'erase_verifications'"))
          .rows;
      const reached = await lastPosition();
      const worker = await plain.startAnother({
        ROLES: "worker",
        DATABASE_URL: byTheClock(plain.databaseUrl),
      });
      await expect.poll(lastPosition).not.toEqual(reached);
      await worker.close();
      const { to } = await verifiedBy(meanwhile);
      await service.sms({ to, from: meanwhile, text: "no code" });

      await moveClock(plain.db, 140 * day);
      await endAllPending();
      await everyTask();
      expect(await tablesWith(meanwhile)).toEqual([]);
    });
  });

  test("an event that is sent again while its verification is to be erased keeps it until the new attempt has ended", async () => {
    const tasks = tasksOf(1);
    const phone = "01087650018";
    await isStillTried((await verifiedBy(phone)).id);
    await moveClock(plain.db, 2 * day);
    await expireDue();
    await eraseDue(tasks);
    const tell = (state: string, nextAttempt: string) =>
      plain.db.query(`UPDATE webhook_delivery SET state = '${state}', next_attempt_at = ${nextAttempt}`);
    await tell("failed", "NULL");
    // The erasure has found the delivery as failed, and stops before it locks it.
    await standStillAtProgress();
    const holder = await plain.db.connect();
    try {
      await holder.query("SELECT pg_advisory_lock(4712)");
      const erasing = tasks.find(({ name }) => name === "erase_tried_longer")?.work();
      await untilWaiting(plain.db, 1);
      await tell("pending", "clock.now() + interval '1 hour'");
      await holder.query("SELECT pg_advisory_unlock(4712)");
      await erasing;
    } finally {
      holder.release(true);
      await goOnAtProgress();
    }
    expect(await tablesWith(phone)).toEqual(["verification"]);
    expect(await count("webhook_delivery")).toBe(1);
    await tell("delivered", "NULL");
    await eraseDue(tasks);
    expect(await tablesWith(phone)).toEqual([]);
  });

  test("an event that is just being sent again when the erasure comes to its verification keeps it, too", async () => {
    const tasks = tasksOf(1);
    const phone = "01087650019";
    await isStillTried((await verifiedBy(phone)).id);
    await plain.db.query("UPDATE webhook_delivery SET state = 'delivered', next_attempt_at = NULL");
    await moveClock(plain.db, 2 * day);
    await expireDue();
    const resending = await plain.db.connect();
    try {
      await resending.query("BEGIN");
      await resending.query(
        "UPDATE webhook_delivery SET state = 'pending', next_attempt_at = clock.now() + interval '1 hour'",
      );
      await eraseDue(tasks);
      await resending.query("COMMIT");
    } finally {
      resending.release(true);
    }
    expect(await tablesWith(phone)).toEqual(["verification"]);
    await eraseDue(tasks);
    expect(await tablesWith(phone)).toEqual(["verification"]);
    await plain.db.query("UPDATE webhook_delivery SET state = 'delivered', next_attempt_at = NULL");
    await eraseDue(tasks);
    expect(await tablesWith(phone)).toEqual([]);
    expect(await count("webhook_delivery")).toBe(0);
  });

  /** From now on, a statement that reads the progress of the passes waits there, with its snapshot, while the lock is held. */
  async function standStillAtProgress(): Promise<void> {
    await plain.db.query(`
    CREATE FUNCTION may_go_on() RETURNS bool LANGUAGE plpgsql AS
      'BEGIN PERFORM pg_advisory_xact_lock_shared(4712); RETURN true; END';
    ALTER TABLE retention_progress RENAME TO progress_below;
    CREATE VIEW retention_progress AS SELECT * FROM progress_below WHERE may_go_on()`);
  }

  async function goOnAtProgress(): Promise<void> {
    await plain.db.query(`
    DROP VIEW retention_progress;
    ALTER TABLE progress_below RENAME TO retention_progress;
    DROP FUNCTION may_go_on`);
  }

  test("a verification whose event is still being tried is kept, and erased once the event is delivered", async () => {
    const tasks = tasksOf(90);
    const phone = "01087650016";
    const pending = await createPending(shop, { mode: "match", expected_phone: phone });
    await moveClock(plain.db, 100 * day);
    await expireDue();
    expect(await eventsOf(plain.db, pending.id)).toEqual(["verification.expired"]);
    await clockIsSteady(plain.db);
    await tasks.find(({ name }) => name === "codes")?.work();
    await isStillTried(pending.id);
    await eraseDue(tasks);
    expect(await tablesWith(phone)).toEqual(["verification"]);

    await plain.db.query("UPDATE webhook_delivery SET state = 'delivered', next_attempt_at = NULL");
    await eraseDue(tasks);
    expect(await tablesWith(phone)).toEqual([]);
    expect(await count("webhook_delivery")).toBe(0);
  });

  test("an event that is tried for longer than phones are kept delays the erasure of its own phone only", async () => {
    const tasks = tasksOf(1);
    const [tried, other, later] = ["01087650011", "01087650012", "01087650013"] as const;
    await isStillTried((await verifiedBy(tried)).id);
    await verifiedBy(other);
    await moveClock(plain.db, 2 * day);
    await expireDue();
    await eraseDue(tasks);
    expect(await tablesWith(other)).toEqual([]);
    expect(await tablesWith(tried)).toEqual(["verification"]);

    await isStillTried((await verifiedBy(later)).id);
    await moveClock(plain.db, 2 * day);
    await expireDue();
    await plain.db.query(
      `UPDATE webhook_delivery SET state = 'failed', next_attempt_at = NULL
     WHERE verification_id < (SELECT max(verification_id::text)::uuid FROM webhook_delivery)`,
    );
    await eraseDue(tasks);
    expect(await tablesWith(tried)).toEqual([]);
    expect(await tablesWith(later)).toContain("verification");
  });

  test("a delivered event is erased with its verification while others are still tried, and younger ones are kept", async () => {
    const fresh = await startTestService({ ROLES: "api" });
    const opened = await openShop(fresh);
    await opened.setWebhook("https://shop.example/hook");
    const younger = await createPending(merchant(fresh.httpUrl, opened.liveKey));
    await fresh.sms({ to: younger.to, from: holder, text: younger.text });
    // More than one batch, among them one that has been delivered and is not the last.
    const id = uuidOf(younger.id);
    await fresh.db.query(
      `WITH older AS MATERIALIZED (
       SELECT uuidv7(interval '-3 days' + n * interval '1 second') AS id, n FROM generate_series(1, 1500) n
     ),
     v AS (
       INSERT INTO verification (id, project_id, environment, mode, status, phone, client_reference, state, destination,
         sms_text, created_at, expires_at, verified_at, webhook_configuration_id)
       SELECT older.id, project_id, environment, mode, status, '010' || lpad(n::text, 8, '0'), '', '', destination,
         '', created_at - interval '3 days', expires_at - interval '3 days', verified_at - interval '3 days', webhook_configuration_id
       FROM verification v, older WHERE v.id = $1
     ),
     e AS (
       INSERT INTO event (verification_id, type, occurred_at)
       SELECT older.id, type, occurred_at - interval '3 days' FROM event, older WHERE verification_id = $1
     )
     INSERT INTO webhook_delivery (verification_id, webhook_configuration_id, state, attempts, next_attempt_at)
     SELECT older.id, webhook_configuration_id, 'pending', 1, now() + interval '1 hour' FROM verification v, older WHERE v.id = $1`,
      [id],
    );
    const end = (phone: string) =>
      fresh.db.query(
        `UPDATE webhook_delivery SET state = 'delivered', next_attempt_at = NULL
       WHERE verification_id IN (SELECT id FROM verification WHERE phone = $1)`,
        [phone],
      );
    const left = async () => {
      const { rows } = await fresh.db.query(
        `SELECT count(phone)::int AS phones, count(d)::int AS deliveries
       FROM verification v LEFT JOIN webhook_delivery d ON d.verification_id = v.id`,
      );
      return rows[0];
    };
    await end(holder);
    await end("01000000007");
    await clockIsSteady(fresh.db, "now()");
    const own = openDatabase({ connectionString: fresh.databaseUrl }, { poolSize: 1, onError: () => {} });
    const tasks = createRetentionTasks(own, { unmatchedDays: 7, finishedDays: 1, statisticsDays: 400 });
    await eraseDue(tasks);
    expect(await left()).toEqual({ phones: 1500, deliveries: 1500 });
    await end("01000001500");
    await eraseDue(tasks);
    expect(await left()).toEqual({ phones: 1499, deliveries: 1499 });
    const { rows } = await fresh.db.query("SELECT phone FROM verification WHERE id = $1", [id]);
    expect(rows).toEqual([{ phone: holder }]);
    await own.close();
  });

  test("an SMS's text and sender are erased whatever its outcome was", async () => {
    const from = "01087650030";
    const [one, two] = [await createPending(shop), await createPending(shop)];
    const texts = ["[Web발신] hello", `${one.text} ${two.text}`, "a", "b", "c", "d", "e"];
    const outcomes = [];
    for (const text of texts) outcomes.push((await service.sms({ to: one.to, from, text }))[0]?.outcome);
    expect(new Set(outcomes)).toEqual(new Set(["WEB_SENT", "AMBIGUOUS", "NO_MATCH", "MUTED"]));
    await moveClock(plain.db, 7 * day);
    await everyTask();
    expect(await tablesWith(from)).toEqual([]);
  });

  test("messages that matched nothing are kept for their own time, even if it is longer than that of the others", async () => {
    const from = "01087650045";
    await service.sms({ to: project.liveNumber, from, text: "no code" });
    const days = { unmatchedDays: 90, finishedDays: 1, statisticsDays: 400 };
    await moveClock(plain.db, 32 * day);
    await clockIsSteady(plain.db);
    for (const task of createRetentionTasks(database, days)) while (await task.work());
    expect(await tablesWith(from)).toEqual(["inbound_message"]);
  });

  test("messages that one worker erases while another one deletes them hold up neither", async () => {
    const other = openDatabase(
      { connectionString: byTheClock(plain.databaseUrl) },
      { poolSize: 1, onError: () => {} },
    );
    onTestFinished(() => other.close());
    const taskOf = (of: RetentionTask[], name: string) => of.find((task) => task.name === name);
    await moveClock(plain.db, 40 * day);
    await everyTask();
    await plain.db.query(
      `INSERT INTO inbound_message (source, message_id, sender, text, ingested_at, outcome, duplicate)
       SELECT 'order', id, '01087650099', 'x', clock.now() + make_interval(secs => n), 'no_match', false
       FROM unnest(ARRAY['c', 'a', 'b']) WITH ORDINALITY AS m (id, n) ORDER BY n`,
    );
    // Another source's with the same id, which stays for longer.
    await plain.db.query(
      `INSERT INTO inbound_message (source, message_id, ingested_at, outcome, verification_id, duplicate)
       SELECT 'other', message_id, ingested_at, 'late', gen_random_uuid(), false FROM inbound_message
       WHERE source = 'order' AND message_id = 'a'`,
    );
    await moveClock(plain.db, 40 * day);
    await clockIsSteady(plain.db);
    const holder = await plain.db.connect();
    onTestFinished(() => holder.release(true));
    await holder.query(
      "BEGIN; SELECT FROM inbound_message WHERE source = 'order' AND message_id = 'b' FOR UPDATE",
    );
    const erasing = taskOf(tasks, "erase_unmatched_messages")?.work();
    await untilWaiting(plain.db, 1);
    const deleting = taskOf(
      createRetentionTasks(other, { unmatchedDays: 7, finishedDays: 90, statisticsDays: 400 }),
      "delete_unmatched_messages",
    )?.work();
    await untilWaiting(plain.db, 2);
    await holder.query("COMMIT");
    expect(await Promise.all([erasing, deleting])).toEqual([false, false]);
    expect(await tablesWith("01087650099")).toEqual([]);
    const { rows } = await plain.db.query(
      "SELECT source FROM inbound_message WHERE message_id = ANY ('{a,b,c}')",
    );
    expect(rows).toEqual([{ source: "other" }]);
  });

  test("until a day after its expiry, a verification's window can be opened and its code is LATE", async () => {
    const { body } = await shop.create();
    // As version 0.1.0 wrote it.
    await plain.db.query(
      "INSERT INTO window_token (digest, verification_id, delete_after) SELECT sha256('of-version-0_1_0-token'), id, expires_at + interval '1 day' FROM verification WHERE id = $1",
      [uuidOf(body.id)],
    );
    await moveClock(plain.db, 10 * 60_000 + day - 60_000);
    await expireDue();
    await everyTask();
    const { pathname } = new URL(body.verification_url);
    for (const path of [pathname, "/v/of-version-0_1_0-token"]) {
      expect((await fetch(service.httpUrl + path)).status).toBe(200);
    }
    expect(
      await service.sms({ to: body.destination, from: "01087650031", text: body.sms_text }),
    ).toMatchObject([{ outcome: "LATE" }]);
  });

  describe("data is kept for as long as it matters:", () => {
    let sent = 0;
    const guess = async (from: string) => {
      const text = `a guess, number ${++sent}`;
      return (await service.sms({ to: project.liveNumber, from, text }))[0]?.outcome;
    };
    const minute = 60_000;

    beforeEach(async () => {
      const { rows } = await plain.db.query("SELECT clock.now()");
      await stopClock(plain.db, rows[0].now);
    });

    test("an idempotency key, and no longer", async () => {
      const key = newIdempotencyKey();
      const first = await shop.create({}, key);
      await moveClock(plain.db, day - 1);
      await everyTask();
      const again = await shop.create({}, key);
      expect([again.status, again.text]).toEqual([200, first.text]);
      await moveClock(plain.db, 1);
      await everyTask();
      expect(await tablesWith(key)).toEqual([]);
    });

    test("the phone that a code expects, and no longer", async () => {
      const phone = "01087650027";
      await createPending(shop, { mode: "match", expected_phone: phone });
      await moveClock(plain.db, 10 * minute + day - 1);
      await expireDue();
      await everyTask();
      expect(await tablesWith(phone)).toEqual(["live_code", "verification"]);
      await moveClock(plain.db, 1);
      await everyTask();
      expect(await tablesWith(phone)).toEqual(["verification"]);
    });

    test("a muted sender", async () => {
      const phone = "01087650020";
      for (let miss = 0; miss < 5; miss++) expect(await guess(phone)).toBe("NO_MATCH");
      await moveClock(plain.db, 10 * minute - 1);
      await everyTask();
      expect(await guess(phone)).toBe("MUTED");
      await moveClock(plain.db, 1);
      await everyTask();
      expect(await tablesWith(phone)).not.toContain("inbound_sender");
    });

    test("a muted sender, also after the clock was set back by as much as time services do", async () => {
      const phone = "01087650026";
      for (let miss = 0; miss < 5; miss++) expect(await guess(phone)).toBe("NO_MATCH");
      await moveClock(plain.db, -minute + 1_000);
      await everyTask();
      expect(await guess(phone)).toBe("MUTED");
    });

    test("misses, also after the clock was set back by as much as time services do", async () => {
      const phone = "01087650044";
      for (let miss = 0; miss < 4; miss++) expect(await guess(phone)).toBe("NO_MATCH");
      await moveClock(plain.db, -minute + 1_000);
      await everyTask();
      expect([await guess(phone), await guess(phone)]).toEqual(["NO_MATCH", "MUTED"]);
    });

    test("misses of the last ten minutes, also beside older ones", async () => {
      const phone = "01087650021";
      expect(await guess(phone)).toBe("NO_MATCH");
      await moveClock(plain.db, 9 * minute);
      for (let miss = 0; miss < 3; miss++) expect(await guess(phone)).toBe("NO_MATCH");
      await moveClock(plain.db, 2 * minute);
      await everyTask();
      expect([await guess(phone), await guess(phone), await guess(phone)]).toEqual([
        "NO_MATCH",
        "NO_MATCH",
        "MUTED",
      ]);
    });

    test("a miss, and no longer", async () => {
      const phone = "01087650028";
      expect(await guess(phone)).toBe("NO_MATCH");
      await moveClock(plain.db, 10 * minute - 1);
      await everyTask();
      expect(await tablesWith(phone)).toEqual(["inbound_message", "inbound_sender"]);
      await moveClock(plain.db, 1);
      await everyTask();
      expect(await tablesWith(phone)).toEqual(["inbound_message"]);
    });

    test("the reason why a verification is still pending, until its expiry", async () => {
      const { liveKey } = await service.createProject({ validitySeconds: 3_600 });
      const { body } = await merchant(service.httpUrl, liveKey).create();
      const text = `[Web발신]\n${body.sms_text}`;
      await service.sms({ to: body.destination, from: "01087650025", text });
      await moveClock(plain.db, 60 * minute - 1);
      await everyTask();
      const { pathname } = new URL(body.verification_url);
      const status = await fetch(`${service.httpUrl}${pathname}/status`);
      expect(await status.json()).toMatchObject({ status: "pending", hint: "web_sent" });
    });

    test("the fingerprint of a message's content, and no longer", async () => {
      const message = { to: project.liveNumber, from: "01087650022", text: "the same again" };
      expect(await service.sms(message)).toMatchObject([{ outcome: "NO_MATCH", duplicate: false }]);
      await moveClock(plain.db, minute - 1);
      await everyTask();
      expect(await service.sms(message)).toMatchObject([{ outcome: "NO_MATCH", duplicate: true }]);
      await moveClock(plain.db, 1);
      await everyTask();
      expect(await count("message_fingerprint")).toBe(0);
    });

    test.for([
      { name: "matched nothing", matches: false, textDays: 7, outcome: "NO_MATCH" },
      { name: "verified", matches: true, textDays: 90, outcome: "VERIFIED" },
    ])("the id of a message that $name, for thirty days after its text was erased", async (row) => {
      const { matches, textDays, outcome } = row;
      const { to, text } = await createPending(shop);
      const from = matches ? "01087650023" : "01087650024";
      const messageId = `known-${outcome}`;
      const again = () => service.sms({ to, from, text: "new", messageId });
      const first = await service.sms({ to, from, text: matches ? text : "a text", messageId });
      expect(first).toMatchObject([{ outcome, duplicate: false }]);
      await moveClock(plain.db, textDays * day);
      await everyTask();
      expect(await tablesWith(from)).not.toContain("inbound_message");
      await moveClock(plain.db, 30 * day - 1);
      await everyTask();
      expect(await again()).toMatchObject([{ outcome, duplicate: true }]);
      await moveClock(plain.db, 1);
      await everyTask();
      expect(await again()).toMatchObject([{ outcome: "NO_MATCH", duplicate: false }]);
    });
  });

  test("a locked row does not keep others from being deleted", async () => {
    await Promise.all([createPending(shop), createPending(shop)]);
    await moveClock(plain.db, 2 * day);
    const somebody = await plain.db.connect();
    await somebody.query("BEGIN; SELECT FROM idempotency_record LIMIT 1 FOR UPDATE");
    await everyTask();
    expect(await count("idempotency_record")).toBe(1);
    await somebody.query("COMMIT");
    somebody.release();
    await everyTask();
    expect(await count("idempotency_record")).toBe(0);
  });

  // The last test, since it makes an id of the future, and erasures go by the ids.
  test("a phone is kept for the whole time after the end of its verification, however late that came", async () => {
    const phone = "01087650017";
    const { id } = await verifiedBy(phone);
    await moveClock(plain.db, 100 * day);
    // As if it had been created 90 days and nearly the longest validity ago, and verified at the last moment.
    await plain.db.query(
      `UPDATE verification SET id = uuidv7(clock.now() - pg_catalog.now() - interval '90 days 59 minutes') WHERE id = $1`,
      [uuidOf(id)],
    );
    const tasks = tasksOf(90);
    await eraseDue(tasks);
    expect(await tablesWith(phone)).toContain("verification");
    await moveClock(plain.db, 120_000);
    await eraseDue(tasks);
    expect(await tablesWith(phone)).not.toContain("verification");
  });
});
