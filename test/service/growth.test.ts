/**
 * Plans are cached while tables grow. A statement that was planned on empty tables must not scan them once they have
 * grown, as one did that joined the requested ids to all messages.
 */
import pg from "pg";
import { expect, onTestFinished, test, vi } from "vitest";
import type { NewVerification } from "../../src/core/verification.ts";
import { ErasureService } from "../../src/gen/proto/phoneproof/v1/erasure_pb.ts";
import { VerificationService } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { WebhookDeliveryState, WebhookService } from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { createCreations } from "../../src/storage/creations.ts";
import { openDatabase } from "../../src/storage/database.ts";
import { createRetentionTasks } from "../../src/storage/retention.ts";
import { merchant } from "../gateway/merchant.ts";
import { clockIsSteady } from "../harness/clock.ts";
import { openOwnDatabase } from "../harness/database.ts";
import { startTestService } from "../harness/service.ts";
import { suppressTimers } from "../harness/timers.ts";
import { startReceiver } from "../webhooks/receiver.ts";
import { delivered, deliveryWhen, openShop } from "../webhooks/shop.ts";
import { newVerification } from "./new-verification.ts";
import { createPending } from "./pending.ts";
import { newPhone } from "./sms-source.ts";

const rows = 20_000;
/** With four connections, each plans every statement within ten rounds. */
const planningRounds = 10;
const measuredRounds = 4;
/** Each round adds two. */
const mostCodes = rows + 100;

/** Rows that past verifications have left in every table that grows, and one code in twenty that has not expired yet. */
const grown = `
WITH like_this AS (SELECT v.*, d.webhook_configuration_id AS webhook FROM verification v
  JOIN webhook_delivery d ON d.verification_id = v.id WHERE v.status = 'verified' LIMIT 1),
seed AS MATERIALIZED (
  SELECT n, uuidv7(-interval '90 minutes') AS id, date_trunc('milliseconds', now()) - interval '90 minutes' AS at,
    '010' || lpad(n::text, 8, '0') AS phone, like_this.*
  FROM generate_series(1, ${rows}) n, (SELECT project_id, environment, webhook FROM like_this) like_this
),
verifications AS (
  INSERT INTO verification (id, project_id, environment, mode, status, phone, client_reference, state, destination,
    sms_text, created_at, expires_at, verified_at, webhook_configuration_id)
  SELECT id, project_id, environment, 'discover', 'verified', phone, '', '', '0200000000', '', at,
    at + interval '10 minutes', at + interval '1 minute', webhook FROM seed
),
codes AS (
  INSERT INTO live_code (destination, code, code_format, verification_id, expires_at, expected_phone, window_digest)
  SELECT '0200000000', n::text, 'numeric', id, at + CASE n % 20 WHEN 0 THEN interval '3 hours' ELSE interval '10 minutes' END,
    phone, sha256(id::text::bytea) FROM seed
),
expired AS (
  UPDATE retention_progress SET done_up_to = now()::text WHERE task = 'expire'
),
records AS (
  INSERT INTO idempotency_record (project_id, environment, key, request_digest, verification_id, verification_url, created_at)
  SELECT project_id, environment, 'grown-key-' || n, '', id, '', at FROM seed
),
former_tokens AS (
  INSERT INTO window_token (digest, verification_id, delete_after)
  SELECT sha256(n::text::bytea), id, now() + interval '1 day' FROM seed
),
events AS (
  INSERT INTO event (verification_id, type, occurred_at) SELECT id, 'verification.verified', at FROM seed
),
deliveries AS (
  INSERT INTO webhook_delivery (verification_id, webhook_configuration_id, state, attempts)
  SELECT id, webhook, 'delivered', 1 FROM seed
),
attempts AS (
  INSERT INTO webhook_attempt (verification_id, number, started_at, status) SELECT id, 1, at, 204 FROM seed
),
fingerprints AS (
  INSERT INTO message_fingerprint (digest, first_at, outcome, verification_id)
  SELECT sha256(n::text::bytea), now(), 'verified', id FROM seed
),
senders AS (
  INSERT INTO inbound_sender (environment, phone, miss_times) SELECT environment, phone, ARRAY[now()] FROM seed
),
hints AS (
  INSERT INTO pending_hint (verification_id, reason, noticed_at) SELECT id, 'web_sent', now() FROM seed
)
INSERT INTO inbound_message (source, message_id, sender, destination, text, ingested_at, outcome, verification_id, duplicate)
SELECT 'grown', n::text, phone, '0200000000', '', at, 'verified', id, false FROM seed`;

/**
 * Tables and indexes of which many rows were read since the counters were reset. `$2`: how many times all codes may have been
 * read on purpose, by the counting of those in use.
 */
const readMuch = `
SELECT relname AS of, seq_tup_read::int AS rows FROM pg_stat_user_tables 
WHERE seq_tup_read > CASE relname WHEN 'live_code' THEN $1 + $2 * ${mostCodes} ELSE $1 END
UNION ALL
SELECT indexrelname, idx_tup_read::int FROM pg_stat_user_indexes
WHERE idx_tup_read > $1`;

test("statements planned on empty tables read only a few rows after the tables have grown", async () => {
  suppressTimers(60_000);
  const countings = watchCountings();
  // Few connections, so that everything is planned on each of them before the tables grow.
  const service = await startTestService({ WEBHOOK_ALLOW_PRIVATE: "true", DATABASE_POOL_SIZE: "4" });
  const { db } = service;
  await db.query("VACUUM ANALYZE");
  const receiver = await startReceiver();
  const opened = await openShop(service);
  await opened.setWebhook(receiver.url);
  const shop = merchant(service.httpUrl, opened.liveKey);
  const verifications = service.client(VerificationService);
  const webhooks = service.client(WebhookService);
  const erasures = service.client(ErasureService);

  let lives = 0;
  async function live(): Promise<void> {
    lives += 1;
    const request = { client_reference: `life-${lives}` };
    const key = `growth-life-${lives}`;
    const created = await shop.create(request, key);
    expect((await shop.create(request, key)).status).toBe(200);
    const { id, destination: to, sms_text: text } = created.body;
    const { pathname } = new URL(created.body.verification_url);
    expect((await fetch(service.httpUrl + pathname)).status).toBe(200);
    const messageId = `life-${lives}`;
    const from = newPhone();
    await service.sms({ to, from, text: "no code at all", messageId: `${messageId}-miss` });
    for (let again = 0; again < 2; again++)
      expect(await service.sms({ to, from, text, messageId })).toMatchObject([{ outcome: "VERIFIED" }]);
    expect((await shop.read(id)).body.status).toBe("verified");
    await deliveryWhen(service, id, delivered);
    const other = await createPending(shop, { mode: "match", expected_phone: from });
    await service.sms({ to: other.to, from, text: "no code" });
    // It holds the code, but belongs to no verification: erasing the verification searches for it.
    await service.sms({ to: other.to, from, text: `[Web발신] ${other.text}` });
    await shop.cancel(other.id);
    await verifications.listVerifications({ projectId: opened.projectId, pageSize: 5 });
    for (const states of [[], [WebhookDeliveryState.FAILED], [WebhookDeliveryState.DELIVERED]])
      await webhooks.listWebhookDeliveries({ projectId: opened.projectId, states, pageSize: 5 });
    for (const verificationId of [id, other.id]) await erasures.eraseVerification({ verificationId });
  }

  for (let round = 0; round < planningRounds; round++) await live();
  countings.begun = 0;
  await db.query(grown);
  for (const statistics of ["those of empty tables", "its own"]) {
    if (statistics === "its own") await db.query("ANALYZE");
    await db.query("SELECT pg_stat_reset()");
    for (let round = 0; round < measuredRounds; round++) await live();
    // One may have begun before.
    await expectLittleRead(db, () => countings.begun + 1);
    countings.begun = 0;
  }
});

test("creations planned on a page of idempotency records find theirs by the key once there are more", async () => {
  const service = await startTestService({ ROLES: "api" });
  const { db } = service;
  const project = await service.createProject();
  await db.query("VACUUM ANALYZE");
  const database = openDatabase(
    { connectionString: service.databaseUrl },
    { poolSize: 1, onError: () => {} },
  );
  const { create } = createCreations(database);
  /** The first of them is alone in its batch; the others form the next one. */
  const createAll = (requests: readonly NewVerification[]) =>
    Promise.all(requests.map((request) => create(request, request.projectId)));
  const pageful = () => Array.from({ length: 33 }, () => newVerification(project, {}));
  await createAll(pageful());
  for (let batch = 0; batch < 20; batch++) {
    const requests = pageful();
    // Since its code is taken, the batch is for the statement that looks keys up.
    const outcomes = await createAll([
      ...requests,
      newVerification(project, { code: requests[1]?.code ?? "" }),
    ]);
    expect(outcomes.at(-1)?.value.kind).toBe("code_taken");
  }
  await database.close();
  await expectLittleRead(db);
});

/** How many times this process has begun to count the codes in use: every few seconds, however long the test takes. */
function watchCountings(): { begun: number } {
  const countings = { begun: 0 };
  interface Submitted {
    readonly name?: string;
    readonly values?: readonly unknown[];
  }
  type Submit = (this: Submitted, connection: unknown) => unknown;
  const queries = pg.Query.prototype as unknown as { submit: Submit };
  const { submit } = queries;
  const counting: Submit = function (connection) {
    if (this.name === "count_codes" && this.values?.[0] === "(0,0)") countings.begun += 1;
    return submit.call(this, connection);
  };
  const submitting = vi.spyOn(queries, "submit").mockImplementation(counting);
  onTestFinished(() => submitting.mockRestore());
  return countings;
}

async function expectLittleRead(db: pg.Pool, countings = () => 1): Promise<void> {
  await untilCounted(db);
  expect((await db.query(readMuch, [rows / 10, countings()])).rows).toEqual([]);
}

/** Ends the service's connections, which report their counters at that point at the latest. */
async function untilCounted(db: pg.Pool): Promise<void> {
  const others =
    "FROM pg_stat_activity WHERE application_name LIKE 'phoneproof%' AND datname = current_database()";
  const { rows: ended } = await db.query(`SELECT pid, pg_terminate_backend(pid) ${others}`);
  const pids = ended.map(({ pid }) => pid);
  await vi.waitUntil(
    async () => (await db.query(`SELECT 1 ${others} AND pid = ANY ($1)`, [pids])).rowCount === 0,
    { timeout: 45_000, interval: 20 },
  );
}

/** Verifications and messages a minute apart, the last of them 130 days old, of which `$1` are still to be erased. */
const longAgo = `
WITH seed AS MATERIALIZED (
  SELECT n, n % 2 = 0 AS matched, uuidv7(age) AS id, date_trunc('milliseconds', now() + age) AS at,
    '010' || lpad(n::text, 8, '0') AS phone
  FROM generate_series(1, ${rows}) n
  CROSS JOIN LATERAL (SELECT interval '1 minute' * (n - ${rows}) - interval '130 days' AS age) a
),
verifications AS (
  INSERT INTO verification (id, project_id, environment, mode, status, phone, client_reference, state, destination,
    sms_text, created_at, expires_at, verified_at)
  SELECT id, id, 'test', 'discover', 'verified', phone, '', '', '0200000000', '', at, at + interval '10 minutes', at FROM seed
),
messages AS (
  INSERT INTO inbound_message (source, message_id, sender, destination, text, ingested_at, outcome, verification_id, duplicate)
  SELECT 'past', n::text, phone, '0200000000', '', at, CASE WHEN matched THEN 'verified' ELSE 'no_match' END::inbound_message_outcome,
    CASE WHEN matched THEN id END, false FROM seed
)
UPDATE retention_progress r
SET done_up_to = CASE task WHEN 'erase_verifications' THEN seed.id::text ELSE seed.at::text END
FROM seed WHERE seed.n = ${rows} - $1::int AND r.task <> 'expire'`;

/** A pooler may drop the planner's settings. A larger table is then joined as a whole, as here for want of another join. */
const otherPlans = "RESET enable_seqscan; RESET plan_cache_mode; RESET jit; SET enable_nestloop = off";

test.for([
  { plans: "the service's plans", settings: "" },
  { plans: "the plans of a larger table behind a pooler", settings: otherPlans },
])("with $plans, retention reads the rows that it reaches, and none that it has passed", async ({
  settings,
}) => {
  const left = 40;
  const { database, db } = await openOwnDatabase();
  await db.query(longAgo, [left]);
  await clockIsSteady(db, "now()");
  await db.query("VACUUM ANALYZE");
  await db.query("SELECT pg_stat_reset()");
  await database.pool.query(settings);
  const tasks = createRetentionTasks(database, { unmatchedDays: 7, finishedDays: 90, statisticsDays: 400 });
  for (const task of tasks) while (await task.work());
  await expectLittleRead(db);
  const { rows: kept } = await db.query(`
    SELECT (SELECT count(*)::int FROM inbound_message) AS messages,
      (SELECT count(*)::int FROM verification WHERE phone IS NOT NULL) AS phones`);
  expect(kept).toEqual([{ messages: rows - left, phones: rows - left }]);
});

/** One of ten of these verifications, and its code, expects the phone `$1`. */
const expectingPhone = `
WITH verifications AS (
  INSERT INTO verification (id, project_id, environment, mode, status, expected_phone, client_reference, state, destination,
    sms_text, created_at, expires_at)
  SELECT uuidv7(n * interval '1 ms' - interval '1 hour'), gen_random_uuid(), 'test', 'match', 'cancelled',
    CASE WHEN n % 10 = 0 THEN $1 ELSE '0100000' || lpad((n % 10)::text, 4, '0') END, '', '', '0200000000', '', at,
    at + interval '1 hour'
  FROM generate_series(1, 40000) n, LATERAL (SELECT date_trunc('milliseconds', now()) + n * interval '1 ms' AS at) a
  RETURNING id, destination, expected_phone, expires_at
)
INSERT INTO live_code (destination, code, code_format, verification_id, expires_at, expected_phone)
SELECT destination, id, 'numeric', id, expires_at, expected_phone FROM verifications WHERE expected_phone = $1`;

test("erasing a phone reads each of its codes twice, however many batches their verifications are in", async () => {
  const service = await startTestService({ ROLES: "api" });
  const phone = newPhone();
  await service.db.query(expectingPhone, [phone]);
  await service.db.query("SELECT pg_stat_reset()");
  await Array.fromAsync(service.client(ErasureService).erasePhone({ phone }));
  await untilCounted(service.db);
  // Those that were changed are still in the index.
  const { rows: read } = await service.db.query(
    "SELECT idx_tup_read::int AS codes FROM pg_stat_user_indexes WHERE indexrelname = 'live_code_expecting'",
  );
  expect(read[0]?.codes).toBeLessThanOrEqual(2 * 4_000);
  const { rows: left } = await service.db.query("SELECT FROM live_code WHERE expected_phone = $1", [phone]);
  expect(left).toEqual([]);
});

/** A hundredth of these verifications has found out the phone `$1`; each has its code. */
const foundPhone = `
WITH verifications AS (
  INSERT INTO verification (id, project_id, environment, mode, status, phone, carrier, client_reference, state, destination,
    sms_text, created_at, expires_at, verified_at)
  SELECT uuidv7(n * interval '1 ms' - interval '1 hour'), gen_random_uuid(), 'test', 'discover', 'verified',
    CASE WHEN n % 100 = 0 THEN $1 ELSE '01000000000' END, NULL, '', '', '0200000000', '', at, at + interval '1 hour', at
  FROM generate_series(1, 20000) n, LATERAL (SELECT date_trunc('milliseconds', now()) + n * interval '1 ms' AS at) a
  RETURNING id, destination, expires_at
)
INSERT INTO live_code (destination, code, code_format, verification_id, expires_at)
SELECT destination, id, 'numeric', id, expires_at FROM verifications`;

test("erasing a phone finds the codes of its verifications by their expiry, also before anything was analyzed", async () => {
  const service = await startTestService({ ROLES: "api" });
  const phone = newPhone();
  for (const table of ["verification", "live_code"]) {
    await service.db.query(`ALTER TABLE ${table} SET (autovacuum_enabled = false)`);
  }
  await service.db.query(foundPhone, [phone]);
  await service.db.query("SELECT pg_stat_reset()");
  await Array.fromAsync(service.client(ErasureService).erasePhone({ phone }));
  await untilCounted(service.db);
  const { rows: read } = await service.db.query(
    "SELECT sum(idx_tup_read)::int AS codes FROM pg_stat_user_indexes WHERE relname = 'live_code'",
  );
  expect(read[0]?.codes).toBeLessThanOrEqual(2 * 200);
  const { rowCount: left } = await service.db.query("SELECT FROM verification WHERE phone = $1", [phone]);
  expect(left).toBe(0);
});
