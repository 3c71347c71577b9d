import { setTimeout as delay } from "node:timers/promises";
import { Code, type ConnectError } from "@connectrpc/connect";
import pg from "pg";
import { expect, onTestFinished, test, vi } from "vitest";
import { newCredential } from "../../src/core/credential.ts";
import { ErasureService } from "../../src/gen/proto/phoneproof/v1/erasure_pb.ts";
import { InboundMessageService } from "../../src/gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import { StatisticsService } from "../../src/gen/proto/phoneproof/v1/statistics_pb.ts";
import { VerificationService } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { runningTime } from "../../src/running-time.ts";
import { merchant } from "../gateway/merchant.ts";
import { startCuttableProxy } from "../harness/cuttable-proxy.ts";
import { startTestService } from "../harness/service.ts";
import { runAllTheTime, suppressTimers } from "../harness/timers.ts";
import { scrape } from "../ops/scrape.ts";
import { answerOf } from "../rpc/grpc-answer.ts";
import { untilWaiting } from "./barrier.ts";
import { createPending } from "./pending.ts";
import { inboundMessage, receiptOf, requests } from "./sms-source.ts";

const service = await startTestService();
const project = await service.createProject({ rateLimitPerMinute: 1_000_000 });
const shop = merchant(service.httpUrl, project.liveKey);

const databaseName = new URL(service.databaseUrl).pathname.slice(1);

/** Terminates the service's connections to the database, whatever they are doing, but not those of this test. */
async function cutConnections(through: pg.Pool | pg.Client = service.db): Promise<number> {
  const { rows } = await through.query<{ cut: number }>(
    "SELECT count(pg_terminate_backend(pid))::int AS cut FROM pg_stat_activity WHERE datname = $1 AND application_name LIKE 'phoneproof%'",
    [databaseName],
  );
  return rows[0]?.cut ?? 0;
}

test("connections lost while in use fail only the calls on them, with 503", async () => {
  const pending = await createPending(shop);
  let cut = 0;
  let busy = true;
  const statuses = new Set<number>();
  const outcomes = new Set<string>();
  const reading = Array.from({ length: 8 }, async () => {
    while (busy) {
      statuses.add((await shop.read(pending.id)).status);
      statuses.add((await shop.create()).status);
    }
  });
  const sending = Array.from({ length: 4 }, async (_, sender) => {
    for (let n = 0; busy; n++) {
      const message = {
        to: pending.to,
        from: `0108765${sender}${n % 1000}`.padEnd(11, "0"),
        text: `hello ${n}`,
      };
      const receipts = await service
        .sms(message)
        .catch((error: { rawMessage: string; code: number }) => error.code);
      outcomes.add(typeof receipts === "number" ? `code ${receipts}` : (receipts[0]?.outcome ?? ""));
    }
  });
  while (cut < 60) cut += await cutConnections();
  busy = false;
  await Promise.all([...reading, ...sending]);
  expect([...statuses].filter((status) => ![200, 201, 503].includes(status))).toEqual([]);
  // 14 is UNAVAILABLE: the source sends such a message again.
  expect([...outcomes].filter((outcome) => !["NO_MATCH", "MUTED", "code 14"].includes(outcome))).toEqual([]);
  await vi.waitUntil(async () => (await shop.read(pending.id)).status === 200, {
    timeout: 45_000,
    interval: 20,
  });
  await vi.waitUntil(
    async () =>
      (await service.sms({ to: pending.to, from: "01087659999", text: pending.text }).catch(() => []))[0]
        ?.verificationId === pending.id,
    { timeout: 45_000, interval: 20 },
  );
});

/** A service that reaches the database through a proxy, and erases one and the same verification on demand. */
async function erasureBehindProxy() {
  const proxy = await startCuttableProxy(service.databaseUrl);
  const behind = await service.startAnother({ DATABASE_URL: proxy.databaseUrl });
  const { id: verificationId } = await createPending(shop);
  const erase = () =>
    behind
      .client(ErasureService)
      .eraseVerification({ verificationId })
      .then(
        () => "erased",
        ({ code }: ConnectError) => code,
      );
  expect(await erase()).toBe("erased");
  return { proxy, erase };
}

test("erasures that wait for a database that hangs fail together, not one after the other", async () => {
  const { proxy, erase } = await erasureBehindProxy();
  proxy.hang();
  const answers: (string | Code)[] = [];
  for (let call = 0; call < 12; call++) void erase().then((answer) => answers.push(answer));
  // The first takes seconds, as would each of those behind it.
  await expect.poll(() => answers).toEqual(Array.from({ length: 12 }, () => Code.Unavailable));
  proxy.restore();
  await expect.poll(erase).toBe("erased");
});

test("an erasure on a connection that the network has forgotten fails alone", async () => {
  const { proxy, erase } = await erasureBehindProxy();
  proxy.forget();
  const answers = await Promise.all(Array.from({ length: 4 }, erase));
  expect(answers.filter((answer) => answer !== "erased")).toEqual([Code.Unavailable]);
});

test("an erasure whose statement the server cancels fails alone, and those that wait for it go on", async () => {
  const erasures = service.client(ErasureService);
  const pendings = [await createPending(shop), await createPending(shop), await createPending(shop)];
  const holder = await service.db.connect();
  onTestFinished(() => holder.release(true));
  await holder.query("BEGIN; LOCK TABLE verification IN SHARE MODE");
  const erased = pendings.map(({ id }) => erasures.eraseVerification({ verificationId: id }));
  const answers = Promise.allSettled(erased);
  // After a second a statement without an answer would be taken for a database that hangs.
  const waiting = async () => {
    const { rows } = await service.db.query<{ pid: number }>(
      `SELECT pid FROM pg_stat_activity
       WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%cancelled AS%'
         AND query_start < clock_timestamp() - interval '1200 milliseconds'`,
    );
    return rows[0]?.pid;
  };
  const pid = await vi.waitUntil(waiting, { timeout: 45_000, interval: 20 });
  await service.db.query("SELECT pg_cancel_backend($1)", [pid]);
  await expect(Promise.race(erased)).rejects.toMatchObject({ code: Code.Unavailable });
  await holder.query("ROLLBACK");
  expect((await answers).map(({ status }) => status).sort()).toEqual(["fulfilled", "fulfilled", "rejected"]);
});

test("an administrative call whose connection is lost at its commit answers UNAVAILABLE", async () => {
  onTestFinished(async () => {
    await service.db.query("DROP FUNCTION end_connection CASCADE");
  });
  await service.db.query(`
    CREATE FUNCTION end_connection() RETURNS trigger LANGUAGE plpgsql AS
      'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END';
    CREATE CONSTRAINT TRIGGER end_at_commit AFTER INSERT ON audit_entry DEFERRABLE INITIALLY DEFERRED
      FOR EACH ROW EXECUTE FUNCTION end_connection()`);
  const suspended = service.client(ProjectService).suspendProject({ projectId: project.projectId });
  await expect(suspended).rejects.toMatchObject({ code: Code.Unavailable });
});

test("calls in two statements on a lost connection get 503, and each retry results in one verification", async () => {
  const proxy = await startCuttableProxy(service.databaseUrl);
  const distant = await service.startAnother({ DATABASE_URL: proxy.databaseUrl });
  const there = merchant(distant.httpUrl, project.liveKey);
  // A read, not a creation: behind the statements below none would be sent if an earlier creation had been slow.
  await there.read((await shop.create()).body.id);
  const statements = () => proxy.timesSent("\0create_new\0");
  const before = statements();
  const holder = await service.db.connect();
  onTestFinished(() => holder.release(true));
  await holder.query("BEGIN");
  await holder.query("SELECT FROM usage FOR UPDATE");
  const keys = Array.from({ length: 100 }, (_, n) => `lost-${n}`.padEnd(16, "_"));
  const calls = keys.map((key) => there.create({}, key));
  // The first statement waits for the project's usage row, and calls that came meanwhile were sent behind it.
  await vi.waitUntil(() => statements() === before + 2, { timeout: 45_000, interval: 5 });
  await untilWaiting(service.db, 1);
  proxy.cut();
  await holder.query("ROLLBACK");
  proxy.restore();
  const outcomes = await Promise.all(calls);
  expect(outcomes.filter(({ status }) => status !== 201 && status !== 503)).toEqual([]);
  expect(outcomes.filter(({ status }) => status === 503).length).toBeGreaterThan(24);

  const again = await Promise.all(keys.map((key) => there.create({}, key)));
  expect(again.filter(({ status }) => status !== 200 && status !== 201)).toEqual([]);
  for (const [index, { status, body }] of outcomes.entries()) {
    if (status === 201) expect(again[index]).toMatchObject({ status: 200, body: { id: body.id } });
  }
  const { rows } = await service.db.query(
    "SELECT count(*)::int AS keys, count(DISTINCT verification_id)::int AS created FROM idempotency_record WHERE key LIKE 'lost-%'",
  );
  expect(rows).toEqual([{ keys: 100, created: 100 }]);
});

test("after an internal fault a message gets no receipt, and is verified when sent again", async () => {
  const pending = await createPending(shop);
  const message = { to: pending.to, from: "01087658888", text: pending.text, messageId: "fault-1" };
  await service.db.query("ALTER TABLE message_fingerprint RENAME TO out_of_reach");
  await expect(service.sms(message)).rejects.toMatchObject({ code: 14 });
  await service.db.query("ALTER TABLE out_of_reach RENAME TO message_fingerprint");
  expect(await service.sms(message)).toMatchObject([
    { outcome: "VERIFIED", verificationId: pending.id, duplicate: false },
  ]);
});

test("a message whose number is being looked up on a connection that is lost gets no receipt, and its stream ends", async () => {
  const message = { to: "0299999999", from: "01087657777", text: "hello", messageId: "unknown-number" };
  const lock = await service.db.connect();
  try {
    await lock.query("BEGIN; LOCK TABLE destination_number");
    const sent = expect(service.sms(message)).rejects.toMatchObject({ code: Code.Unavailable });
    await untilWaiting(service.db, 1);
    await cutConnections();
    await sent;
  } finally {
    lock.release(true);
  }
  expect(await service.sms(message)).toMatchObject([{ outcome: "NO_MATCH", duplicate: false }]);
});

test("a message that is judged again on a connection that is lost gets no receipt, and is no fault", async () => {
  const message = { to: "0299999999", from: "01087657778", text: "hello", messageId: "judged-again" };
  await service.sms(message);
  const faults = async () => (await scrape(service.opsUrl)).sum("phoneproof_inbound_faults_total");
  const before = await faults();
  const holder = await service.db.connect();
  try {
    await holder.query("SELECT pg_advisory_lock(hashtext('phoneproof inbound'))");
    const sent = expect(service.sms(message)).rejects.toMatchObject({ code: Code.Unavailable });
    await untilWaiting(service.db, 1);
    await cutConnections();
    await sent;
  } finally {
    holder.release(true);
  }
  expect(await faults()).toBe(before);
  expect(await service.sms(message)).toMatchObject([{ outcome: "NO_MATCH", duplicate: true }]);
});

const amidBatch = {
  "a fault": {
    begin: "ALTER TABLE pending_hint RENAME TO out_of_reach",
    end: "ALTER TABLE out_of_reach RENAME TO pending_hint",
  },
  "a database that goes away": {
    begin: `
      CREATE FUNCTION go_away() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN RAISE EXCEPTION USING ERRCODE = ''admin_shutdown''; END';
      CREATE TRIGGER go_away BEFORE INSERT ON pending_hint EXECUTE FUNCTION go_away()`,
    end: "DROP FUNCTION go_away CASCADE",
  },
};

test.each(
  Object.entries(amidBatch),
)("%s during a batch: messages that were not stored get no receipt, and all others get theirs", async (name, {
  begin,
  end,
}) => {
  const [first, second] = [await createPending(shop), await createPending(shop)];
  const messages = [
    { to: first.to, text: first.text },
    { to: second.to, text: second.text },
    { to: second.to, text: "hello" },
  ].map((message, n) => inboundMessage({ ...message, messageId: `${name}-${n}` }));
  const source = service.client(InboundMessageService);
  const outcomes: [string, boolean][] = [];
  const send = async () => {
    outcomes.length = 0;
    // The first is sent alone; those that arrive meanwhile form a batch.
    for await (const { receipts } of source.streamInboundMessages(requests(messages)))
      outcomes.push(...receipts.map(receiptOf).map((one): [string, boolean] => [one.outcome, one.duplicate]));
  };
  await service.db.query(begin);
  await expect(send()).rejects.toMatchObject({ code: 14 });
  await service.db.query(end);
  expect(outcomes).toEqual([
    ["VERIFIED", false],
    ["VERIFIED", false],
  ]);
  await send();
  expect(outcomes).toEqual([
    ["VERIFIED", true],
    ["VERIFIED", true],
    ["NO_MATCH", false],
  ]);
});

test("a database that refuses connections counts as unavailable, not as a fault; a mistyped key is refused without it", async () => {
  const url = new URL(service.databaseUrl);
  const elsewhere = new pg.Client({ connectionString: Object.assign(url, { pathname: "/postgres" }).href });
  await elsewhere.connect();
  onTestFinished(() => elsewhere.end());
  const letIn = (allowed: boolean) =>
    elsewhere.query(`ALTER DATABASE ${pg.escapeIdentifier(databaseName)} ALLOW_CONNECTIONS ${allowed}`);
  await letIn(false);
  try {
    await cutConnections(elsewhere);
    const answers = await Promise.all(Array.from({ length: 40 }, () => shop.create()));
    const failures = new Set(answers.map(({ status, body }) => `${status} ${body.error?.code}`));
    expect(failures).toEqual(new Set(["503 service_unavailable"]));
    const unknown = newCredential("live");
    const typo = unknown.slice(0, -1) + (unknown.endsWith("0") ? "1" : "0");
    expect((await merchant(service.httpUrl, unknown).read("vrf_none")).status).toBe(503);
    expect((await merchant(service.httpUrl, typo).read("vrf_none")).status).toBe(401);
  } finally {
    await letIn(true);
  }
  expect((await shop.create()).status).toBe(201);
});

test("a key that could not be looked up is looked up again by the next call", async () => {
  const { testKey } = await service.createProject();
  const holder = await service.db.connect();
  await holder.query("BEGIN; LOCK TABLE api_key IN ACCESS EXCLUSIVE MODE");
  const testShop = merchant(service.httpUrl, testKey);
  // Stops the clock by which lookups are cached, so that the failed one would stay cached.
  const now = performance.now();
  vi.spyOn(performance, "now").mockReturnValue(now);
  onTestFinished(() => void vi.restoreAllMocks());
  const refused = testShop.read("vrf_none");
  await untilWaiting(service.db, 1);
  await service.db.query(
    `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
     WHERE datname = current_database() AND application_name = 'phoneproof' AND wait_event_type = 'Lock'`,
  );
  expect((await refused).status).toBe(503);
  await holder.query("COMMIT");
  holder.release();
  expect((await testShop.read("vrf_none")).status).toBe(404);
});

test("a statement that waits for a lock is not mistaken for one on a dead connection", async () => {
  const looks = vi.spyOn(pg.Client.prototype, "connect");
  onTestFinished(() => looks.mockRestore());
  let aheadMs = 0;
  const { now } = runningTime;
  const clock = vi.spyOn(runningTime, "now").mockImplementation(() => now() + aheadMs);
  onTestFinished(() => clock.mockRestore());
  const looked = () =>
    (looks.mock.contexts as { connectionParameters?: { application_name?: string } }[]).filter(
      ({ connectionParameters }) => connectionParameters?.application_name === "phoneproof-watch",
    ).length;
  const holder = await service.db.connect();
  onTestFinished(() => holder.release(true));
  await holder.query("BEGIN; LOCK TABLE idempotency_record IN ACCESS EXCLUSIVE MODE");
  const creating = shop.create();
  await untilWaiting(service.db, 1);
  // After a second without an answer, the server is asked about the statement, and would have to find it idle twice.
  for (let look = 1; look <= 3; look++) {
    aheadMs += 1_000;
    await vi.waitUntil(() => looked() >= look, { timeout: 45_000, interval: 5 });
  }
  await holder.query("COMMIT");
  const { status, body } = await creating;
  expect([status, body.error]).toEqual([201, undefined]);
});

test("a start waits longer than a running service for a database that is slow to answer", async () => {
  // The start's own limit. That of a running service is a second.
  suppressTimers(5_000);
  const proxy = await startCuttableProxy(service.databaseUrl);
  const held = proxy.holdAnswerTo("LISTEN ");
  const starting = service.startAnother({ DATABASE_URL: proxy.databaseUrl });
  await held;
  await delay(1_500);
  proxy.restore();
  const started = await starting;
  expect((await fetch(`${started.opsUrl}/readyz`)).status).toBe(200);
});

/** The time that statements have taken goes on only with `vi.advanceTimersByTime`. */
function stopRunningTime(): void {
  vi.useFakeTimers({ toFake: ["performance"] });
  runAllTheTime();
  onTestFinished(() => void vi.useRealTimers());
}

test("a call whose two statements both take long gets 503 before the second one is answered", async () => {
  const proxy = await startCuttableProxy(service.databaseUrl);
  const distant = await service.startAnother({ DATABASE_URL: proxy.patientUrl });
  const there = merchant(distant.httpUrl, project.liveKey);
  const replay = () => there.create({}, "slow-replay-0000");
  const first = await shop.create({}, "slow-replay-0000");
  await there.create();

  stopRunningTime();
  const refused = proxy.holdAnswerTo("\0create_new\0");
  const call = replay();
  await refused;
  vi.advanceTimersByTime(8_000);
  const found = proxy.holdAnswerTo("\0create\0");
  proxy.restore();
  await found;
  vi.advanceTimersByTime(7_000);
  expect((await call).body.error.code).toBe("service_unavailable");
  proxy.restore();
  expect(await replay()).toMatchObject({ status: 200, body: { id: first.body.id } });
});

test.for([
  ["read over REST", "find"],
  ["read over gRPC", "find"],
  ["call for statistics", "statistics_hours"],
] as const)("a %s whose key is looked up slowly, and whose statement takes long then, gets 503 within 15 s", async ([
  what,
  statement,
]) => {
  const proxy = await startCuttableProxy(service.databaseUrl);
  const distant = await service.startAnother({ DATABASE_URL: proxy.patientUrl });
  const { id: verificationId } = await createPending(shop);
  const { getVerification } = distant.client(VerificationService, project.liveKey);
  const { getStatistics } = distant.client(StatisticsService, project.liveKey);
  const call = {
    "read over REST": async () => {
      const { status, body } = await merchant(distant.httpUrl, project.liveKey).read(verificationId);
      return status === 200 ? "ok" : body.error.code;
    },
    "read over gRPC": async () =>
      (await answerOf((options) => getVerification({ verificationId }, options))).code,
    "call for statistics": async () => (await answerOf((options) => getStatistics({}, options))).code,
  }[what];

  stopRunningTime();
  const lookedUp = proxy.holdAnswerTo("\0caller_api_keys\0");
  const refusal = call();
  await lookedUp;
  vi.advanceTimersByTime(8_000);
  const found = proxy.holdAnswerTo(`\0${statement}\0`);
  proxy.restore();
  await found;
  vi.advanceTimersByTime(6_000);
  expect(await refusal).toBe("service_unavailable");
  proxy.restore();
  expect(await call()).toBe("ok");
});

test.for([
  "REST",
  "gRPC",
])("a call over %s whose key is looked up slowly, and whose failure is charged slowly then, gets 503 within 15 s", async (face) => {
  const proxy = await startCuttableProxy(service.databaseUrl);
  const distant = await service.startAnother({ DATABASE_URL: proxy.patientUrl });
  const overRest = async () => {
    const { status, body, headers } = await merchant(distant.httpUrl, project.liveKey).create({}, "");
    return [status, body.error.code, headers.get("retry-after")];
  };
  const overGrpc = async () => {
    const { createVerification } = distant.client(VerificationService, project.liveKey);
    const { status, code, metadata } = await answerOf((options) => createVerification({}, options));
    return [status, code, metadata.get("retry-after")];
  };
  const call = face === "REST" ? overRest : overGrpc;

  stopRunningTime();
  const lookedUp = proxy.holdAnswerTo("\0caller_api_keys\0");
  const refusal = call();
  await lookedUp;
  vi.advanceTimersByTime(8_000);
  const charged = proxy.holdAnswerTo("\0charge\0");
  proxy.restore();
  await charged;
  vi.advanceTimersByTime(6_000);
  const unavailable = face === "REST" ? 503 : Code.Unavailable;
  expect(await refusal).toEqual([unavailable, "service_unavailable", "1"]);
  proxy.restore();
  const invalid = face === "REST" ? 400 : Code.InvalidArgument;
  expect(await call()).toEqual([invalid, "idempotency_key_required", null]);
});
