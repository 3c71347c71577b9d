/** Races of creations, and of the usage that is counted for them, over both APIs of several processes. */
import { createHash, randomUUID } from "node:crypto";
import { describe, expect, test } from "vitest";
import { newId, newIdAt } from "../../src/core/ids.ts";
import { type NewVerification, noDestination } from "../../src/core/verification.ts";
import { Environment, VerificationService } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { WebhookService } from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { createCreations } from "../../src/storage/creations.ts";
import { openDatabase } from "../../src/storage/database.ts";
import { type StorageObserver, unobserved } from "../../src/storage/observer.ts";
import { type Answer, merchant, newIdempotencyKey, usageOf } from "../gateway/merchant.ts";
import { moveClock, stopClock } from "../harness/clock.ts";
import { atFileEnd } from "../harness/endings.ts";
import type { TestService } from "../harness/service.ts";
import { answerOf } from "../rpc/grpc-answer.ts";
import { raceTo } from "./barrier.ts";
import { startClockedPair } from "./clocked-pair.ts";
import { knownProject } from "./known-project.ts";
import { newVerification } from "./new-verification.ts";
import { codeIn, uuidOf } from "./pending.ts";

const { service, clocked, here, there } = await startClockedPair();
const project = await here.createProject({ rateLimitPerMinute: 1_000_000 });
const [shopHere, shopThere] = [
  merchant(here.httpUrl, project.liveKey),
  merchant(there.httpUrl, project.liveKey),
];

const start = new Date("2031-05-01T00:00:00.000Z");
const dayMs = 86_400_000;

const times = <T>(count: number, make: (index: number) => T): T[] =>
  Array.from({ length: count }, (_, index) => make(index));

describe("creations with the same idempotency key", () => {
  test("at the same time, over both APIs of both processes, create exactly one verification", async () => {
    const { liveKey } = await knownProject([here, there]);
    for (let round = 0; round < 3; round++) {
      const key = newIdempotencyKey();
      const created = await Promise.all(times(50, (index) => createAnyhow(index, liveKey, key)));
      expect(created.filter(({ replayed }) => !replayed)).toHaveLength(1);
      const [{ replayed: _, ...first } = { replayed: false }] = created;
      for (const { replayed: _, ...answer } of created) expect(answer).toEqual(first);
    }
    const { headers } = await merchant(there.httpUrl, liveKey).read("vrf_none");
    expect(headers.get("x-usage-calls")).toBe("151");
    const { rows } = await service.db.query(
      "SELECT count(*)::int AS count FROM verification WHERE environment = 'live' AND project_id = (SELECT project_id FROM api_key WHERE ending = $1)",
      [liveKey.slice(-4)],
    );
    expect(rows).toEqual([{ count: 3 }]);
  });

  test("on two processes: the loser gets the winner's response, byte for byte", async () => {
    const key = newIdempotencyKey();
    const [first, second] = await raceTo(service.db, "verification", [
      () => shopHere.create({ state: "s" }, key),
      () => shopThere.create({ state: "s" }, key),
    ]);
    expect([first.status, second.status]).toEqual([201, 200]);
    expect(second.headers.get("idempotent-replayed")).toBe("true");
    expect(second.text).toBe(first.text);
  });

  test.for([
    { name: "project", other: () => knownProject([here, there]).then(({ liveKey }) => liveKey) },
    { name: "environment", other: async () => project.testKey },
  ])("on two processes: the loser does not get the response that another $name got for that key", async ({
    other,
  }) => {
    const key = newIdempotencyKey();
    const elsewhere = merchant(here.httpUrl, await other());
    expect((await elsewhere.create({ state: "s" }, key)).status).toBe(201);
    const [first, second] = await raceTo(service.db, "verification", [
      () => shopHere.create({ state: "s" }, key),
      () => shopThere.create({ state: "s" }, key),
    ]);
    expect([first.status, second.status]).toEqual([201, 200]);
    expect(second.text).toBe(first.text);
  });

  test("on two processes: the loser gets a conflict if its body differs", async () => {
    const key = newIdempotencyKey();
    const [first, second] = await raceTo(service.db, "verification", [
      () => shopHere.create({ state: "s" }, key),
      () => shopThere.create({ state: "t" }, key),
    ]);
    expect([first.status, second.status]).toEqual([201, 409]);
    expect(second.body.error.code).toBe("idempotency_conflict");
  });

  test("raced again after 24 hours create exactly one new verification, which the others replay", async () => {
    await stopClock(service.db, start);
    const key = newIdempotencyKey();
    const old = await shopHere.create({}, key);
    await moveClock(service.db, dayMs - 1);
    const last = await shopThere.create({}, key);
    expect([last.status, last.text]).toEqual([200, old.text]);
    await moveClock(service.db, 1);
    const [first, second] = await raceTo(service.db, "verification", [
      () => shopHere.create({}, key),
      () => shopThere.create({}, key),
    ]);
    const [made, repeated] = first.status === 201 ? [first, second] : [second, first];
    expect([made.status, repeated.status]).toEqual([201, 200]);
    expect(made.body.id).not.toBe(old.body.id);
    expect(repeated.text).toBe(made.text);
  });

  test("after 24 hours: twenty keys, raced ten times each, create twenty verifications", async () => {
    await stopClock(service.db, start);
    const keys = times(20, newIdempotencyKey);
    const old = await Promise.all(keys.map((key) => shopHere.create({}, key)));
    await moveClock(service.db, dayMs);
    const answers = await Promise.all(
      keys.map((key) =>
        Promise.all(times(10, (index) => (index % 2 === 0 ? shopHere : shopThere).create({}, key))),
      ),
    );
    for (const [index, ofOneKey] of answers.entries()) {
      expect(ofOneKey.filter(({ status }) => status === 201)).toHaveLength(1);
      expect(ofOneKey.filter(({ status }) => status === 200)).toHaveLength(9);
      expect(new Set(ofOneKey.map(({ text }) => text)).size).toBe(1);
      expect(ofOneKey[0]?.body.id).not.toBe(old[index]?.body.id);
    }
  });
});

test("a creation writes the same rows whether or not a key was repeated just before it", async () => {
  // A process that has just started has not seen a repeated key.
  const fresh = await service.startAnother();
  const registered = { parentOrigin: "https://shop.example", returnUrl: "https://shop.example/done" };
  const { projectId, liveKey } = await fresh.createProject(registered);
  await fresh
    .client(WebhookService)
    .setWebhook({ projectId, environment: Environment.LIVE, url: "https://shop.example/hook" });
  const shop = merchant(fresh.httpUrl, liveKey);
  const request = {
    mode: "match",
    expected_phone: "010-1234-5678",
    client_reference: "order 1",
    state: "s",
    parent_origin: registered.parentOrigin,
    return_url: registered.returnUrl,
  };
  const key = newIdempotencyKey();
  const before = await shop.create(request, key);
  expect((await shop.create(request, key)).status).toBe(200);
  const after = await shop.create(request);
  const written = await writtenOf(before.body.id);
  expect(written).toMatchObject({
    verification: {
      parent_origin: registered.parentOrigin,
      return_url: registered.returnUrl,
      expected_phone: "01012345678",
      webhook_configuration_id: expect.any(String),
    },
    digest_length: 32,
    code: { expected_phone: "01012345678" },
    validity: 600,
    code_after: 0,
  });
  expect(await writtenOf(after.body.id)).toEqual(written);
});

/** All rows of a creation, without values that are unique to it; times as differences in seconds. */
async function writtenOf(verificationId: string) {
  const { rows } = await service.db.query(
    `SELECT to_jsonb(v) - '{id,created_at,expires_at,sms_text}'::text[] AS verification,
       octet_length(l.window_digest) AS digest_length,
       to_jsonb(l) - '{code,verification_id,expires_at,window_digest}'::text[] AS code,
       to_jsonb(i) - '{key,verification_id,verification_url,created_at}'::text[] AS record,
       extract(epoch FROM v.expires_at - v.created_at)::int AS validity,
       extract(epoch FROM l.expires_at - v.expires_at)::int AS code_after,
       extract(epoch FROM i.created_at - v.created_at)::int AS record_after
     FROM verification v JOIN live_code l ON l.verification_id = v.id
     JOIN idempotency_record i ON i.verification_id = v.id
     WHERE v.id = $1`,
    [uuidOf(verificationId)],
  );
  expect(rows).toHaveLength(1);
  return rows[0];
}

interface Created {
  readonly replayed: boolean;
  readonly id: string;
  readonly destination: string;
  readonly smsText: string;
  readonly url: string;
}

/** Creates over REST or gRPC, on either process, by turns. */
async function createAnyhow(index: number, apiKey: string, idempotencyKey: string): Promise<Created> {
  const process = index % 2 === 0 ? here : there;
  if (index % 4 < 2) {
    const { status, headers, body } = await merchant(process.httpUrl, apiKey).create({}, idempotencyKey);
    const replayed = headers.get("idempotent-replayed") === "true";
    expect(status).toBe(replayed ? 200 : 201);
    const { id, destination, sms_text: smsText, verification_url: url } = body;
    return { replayed, id, destination, smsText, url };
  }
  const { idempotentReplayed, verification, destination, smsText, verificationUrl } = await process
    .client(VerificationService, apiKey)
    .createVerification({ idempotencyKey });
  return {
    replayed: idempotentReplayed,
    id: verification?.id ?? "",
    destination,
    smsText,
    url: verificationUrl,
  };
}

describe("the usage limit", () => {
  test("lets exactly its number of calls pass on three processes, each with a number of its own", async () => {
    const limit = 200;
    const third = await service.startAnother(clocked);
    const { liveKey } = await knownProject([here, there, third], {
      usageLimit: BigInt(limit),
      rateLimitPerMinute: 1_000_000,
    });
    const processes = [here, there, third];
    const call = async (index: number) => {
      for (;;) {
        const told = await anyCall(processes[index % 3] ?? here, liveKey, Math.floor(index / 3));
        // On a busy machine some are told to come again.
        if (told.code !== "service_unavailable") return told;
      }
    };
    const calls = await Promise.all(times(300, call));
    const passed = calls.filter(({ usage }) => usage !== null);
    expect(passed.map(({ usage }) => usage).sort(byNumber)).toEqual(
      times(limit, (index) => `${index + 1}/${limit}`),
    );
    expect(passed.map(({ code }) => code)).not.toContain("usage_limit_exceeded");
    const refused = calls.filter(({ usage }) => usage === null);
    expect(refused.map(({ code }) => code)).toEqual(times(100, () => "usage_limit_exceeded"));
    for (const process of processes) {
      expect(await anyCall(process, liveKey, 0)).toEqual({ code: "usage_limit_exceeded", usage: null });
    }
  });

  test("applies to a calendar month in Seoul", async () => {
    const { liveKey } = await here.createProject({ usageLimit: 2n });
    const shop = merchant(there.httpUrl, liveKey);
    const usage = async () => usageOf(await shop.read("vrf_none"));
    await stopClock(service.db, new Date("2031-05-31T14:59:59.999Z"));
    expect([await usage(), await usage(), await usage()]).toEqual(["1/2", "2/2", null]);
    await moveClock(service.db, 1);
    expect([await usage(), await usage(), await usage()]).toEqual(["1/2", "2/2", null]);
  });

  test.for([
    1, 2, 3, 7, 20,
  ])("of %d lets exactly that many concurrent calls on one process pass", async (limit) => {
    const { liveKey } = await here.createProject({ usageLimit: BigInt(limit) });
    const shop = merchant(here.httpUrl, liveKey);
    const answers = await Promise.all(times(40, () => shop.read("vrf_none")));
    const passed = answers.map(usageOf).filter((usage) => usage !== null);
    expect(passed.sort(byNumber)).toEqual(times(limit, (index) => `${index + 1}/${limit}`));
    expect(answers.filter(({ status }) => status === 429)).toHaveLength(40 - limit);
  });
});

interface CallTold {
  readonly code: string;
  /** `7/200`, or null if the response shows no usage. */
  readonly usage: string | null;
}

/** One of the calls that count, including those that fail, over either API. */
async function anyCall(process: TestService, apiKey: string, kind: number): Promise<CallTold> {
  const shop = merchant(process.httpUrl, apiKey);
  const rpc = process.client(VerificationService, apiKey);
  const overRest = async (answer: Promise<Answer>): Promise<CallTold> => {
    const result = await answer;
    return { code: result.status < 300 ? "ok" : result.body.error.code, usage: usageOf(result) };
  };
  const overGrpc = async (call: Parameters<typeof answerOf>[0]): Promise<CallTold> => {
    const { code, metadata } = await answerOf(call);
    const count = metadata.get("x-usage-calls");
    return { code, usage: count === null ? null : `${count}/${metadata.get("x-usage-limit")}` };
  };
  const create = () => overRest(shop.create());
  const calls = [
    create,
    () => overGrpc((options) => rpc.createVerification({ idempotencyKey: newIdempotencyKey() }, options)),
    () => overRest(shop.read("vrf_none")),
    () => overGrpc((options) => rpc.getVerification({ verificationId: "vrf_none" }, options)),
    () => overRest(shop.cancel("vrf_none")),
    () => overGrpc((options) => rpc.listVerifications({}, options)),
    () => overRest(shop.create({ mode: "match" })),
    () => overGrpc((options) => rpc.createVerification({}, options)),
  ];
  return (calls[kind % calls.length] ?? create)();
}

const byNumber = (one: string | null, other: string | null) =>
  Number.parseInt(one ?? "", 10) - Number.parseInt(other ?? "", 10);

test("codes never collide, even if a fifth of the number's codes are unavailable", async () => {
  const { liveKey, liveNumber } = await knownProject([here, there], {
    codeLength: 6,
    rateLimitPerMinute: 1_000_000,
  });
  // In quarantine: they expired nearly a day ago.
  await service.db.query(
    `INSERT INTO live_code (destination, code, code_format, verification_id, expires_at)
     SELECT $1, lpad(code::text, 6, '0'), 'numeric', gen_random_uuid(), now() - interval '23 hours 50 minutes'
     FROM generate_series(0, 199999) code`,
    [liveNumber],
  );
  const shops = [here, there].map(({ httpUrl }) => merchant(httpUrl, liveKey));
  const created = await Promise.all(times(300, (index) => shops[index % 2]?.create()));
  expect(created.map((answer) => answer?.status)).toEqual(times(300, () => 201));
  const codes = created.map((answer) => codeIn(answer?.body.sms_text ?? ""));
  expect(new Set(codes).size).toBe(300);
  for (const code of codes) expect(code).toMatch(/^[2-9]\d{5}$/);
  // Trying another code does not count as another call.
  const { headers } = await merchant(there.httpUrl, liveKey).read("vrf_none");
  expect(headers.get("x-usage-calls")).toBe("301");
});

/** A process's creations below its batches, with the names of the statements they have sent. */
function watchedCreations() {
  const statements: string[] = [];
  const observer: StorageObserver = {
    ...unobserved,
    statement(name, work) {
      statements.push(name);
      return work();
    },
  };
  const database = openDatabase(
    { connectionString: service.databaseUrl },
    { poolSize: 1, onError: () => {}, observer },
  );
  atFileEnd(() => database.close());
  return { create: createCreations(database).create, statements };
}

describe("two processes whose batches have the same idempotency keys in opposite orders do not deadlock:", () => {
  test.for([
    { name: "only new ones", repeats: 0, first: ["create_new"], second: ["create_new", "create"] },
    // A batch with a repeated key is for the statement that looks keys up.
    { name: "and a repeated one", repeats: 1, first: ["create"], second: ["create", "first_answer"] },
  ])("$name", async ({ repeats, first, second }) => {
    const project = await service.createProject();
    const processes = [watchedCreations(), watchedCreations()] as const;
    const requestDigest = createHash("sha256").update("body").digest("hex");
    const scope = randomUUID();
    /** Sends the first request alone; those that arrive meanwhile form the next batch. Codes and keys have the same order. */
    async function createAt(process: 0 | 1, keys: readonly string[]): Promise<string[]> {
      const own = [`alone-${process}`, ...keys, `own-${process}`, ...times(repeats, () => `own-${process}`)];
      const outcomes = await Promise.all(
        own.map((key, position) => {
          const unique = { idempotencyKey: `${scope}-${key}`, code: `${process}000000${position}` };
          return processes[process].create(newVerification(project, { requestDigest, ...unique }), null);
        }),
      );
      return outcomes.map(({ value }) => value.kind);
    }
    // Each stops at its key in the middle, with the keys that it has taken before.
    const kinds = await raceTo(
      service.db,
      "idempotency_record",
      [() => createAt(0, ["a", "stop-0", "z"]), () => createAt(1, ["z", "stop-1", "a"])],
      "NEW.key LIKE '%stop%'",
    );
    const replayed = times(repeats, () => "replayed");
    expect(kinds).toEqual([
      ["created", "created", "created", "created", "created", ...replayed],
      ["created", "replayed", "created", "replayed", "created", ...replayed],
    ]);
    // Postgres ends a deadlock by refusing a statement. The requests of that batch would have been tried apart.
    expect(processes.map(({ statements }) => statements)).toEqual([
      ["create_new", ...first],
      ["create_new", ...second],
    ]);
  });
});

describe("in one batch", () => {
  const { create, statements } = watchedCreations();

  /** The first request is sent alone; those that arrive meanwhile form the next batch. */
  async function createTogether(requests: readonly Partial<NewVerification>[]) {
    statements.length = 0;
    const project = await service.createProject();
    const { liveNumber } = project;
    const asked = requests.map((request) => newVerification(project, request));
    const outcomes = await Promise.all(asked.map((request) => create(request, null)));
    // The batch did not fail, which would have split it.
    expect(statements).toEqual(["create_new", "create"]);
    const { rows } = await service.db.query(
      "SELECT code FROM live_code WHERE destination = $1 ORDER BY code",
      [liveNumber],
    );
    return { outcomes: outcomes.map(({ value }) => value), codes: rows.map(({ code }) => code) };
  }

  test("of equal codes one is created, and the others get code_taken", async () => {
    const drawn = ["11111111", "22222222", "33333333", "22222222", "22222222", "44444444"];
    const { outcomes, codes } = await createTogether(drawn.map((code) => ({ code })));
    expect(outcomes.map(({ kind }) => kind)).toEqual([
      "created",
      "created",
      "created",
      "code_taken",
      "code_taken",
      "created",
    ]);
    expect(codes).toEqual([...new Set(drawn)]);
  });

  test("an id of another time creates nothing and learns the time; its repeat in the batch and the others are not affected", async () => {
    const hours = 60 * 60_000;
    const before = Date.now();
    const outdated = { id: newIdAt(before - 2 * hours), code: "66666661", idempotencyKey: "outdated-1" };
    const { outcomes, codes } = await createTogether([
      { code: "66666660" },
      outdated,
      { ...outdated, id: newId(), code: "66666662" },
      { id: newIdAt(before + 2 * hours), code: "66666663" },
      { id: newIdAt(before - hours / 2), code: "66666664" },
    ]);
    expect(outcomes.map(({ kind }) => kind)).toEqual([
      "created",
      "id_outdated",
      "code_taken",
      "id_outdated",
      "created",
    ]);
    for (const outcome of outcomes) {
      if (outcome.kind === "id_outdated") expect(Math.abs(outcome.now - before)).toBeLessThan(hours);
    }
    expect(codes).toEqual(["66666660", "66666664"]);
  });

  test("on a number that was chosen long ago and does not serve its environment none is created, and the others are not affected", async () => {
    const { liveNumber, testNumber } = await service.createProject();
    await service.db.query("UPDATE destination_number SET removed_at = now() WHERE number = $1", [
      liveNumber,
    ]);
    const { rows } = await service.db.query("SELECT floor(extract(epoch FROM now()) * 1000)::float8 AS now");
    const longAgo = () => newIdAt(rows[0].now - 5_000);
    const { outcomes, codes } = await createTogether([
      { code: "88888880" },
      { id: longAgo(), destination: liveNumber },
      { id: longAgo(), destination: testNumber },
      { id: longAgo(), destination: testNumber, environment: "test" },
      // Its number may be removed in the next moment as well.
      { id: newIdAt(rows[0].now + 60_000), destination: liveNumber },
      // The project had no number, and the record of the key has just ended.
      { destination: noDestination },
      { code: "88888881" },
      // Such a batch is for the statement that looks at each request.
      { code: "88888881" },
    ]);
    expect(outcomes.map(({ kind }) => kind)).toEqual([
      "created",
      "number_removed",
      "number_removed",
      "created",
      "created",
      "number_removed",
      "created",
      "code_taken",
    ]);
    expect(codes).toEqual(["88888880", "88888881"]);
  });

  test.for([
    { name: "made long ago", madeMs: -5_000, kind: "number_removed" },
    { name: "of another time", madeMs: 2 * 60 * 60_000, kind: "id_outdated" },
  ])("an id that was $name is found beside one of now, also if all else is new", async ({ madeMs, kind }) => {
    const project = await service.createProject();
    const { rows } = await service.db.query(
      `UPDATE destination_number SET removed_at = now() WHERE number = $1
       RETURNING floor(extract(epoch FROM now()) * 1000)::float8 AS now`,
      [project.testNumber],
    );
    const another = watchedCreations();
    const asked = [{}, {}, { id: newIdAt(rows[0].now + madeMs), destination: project.testNumber }];
    const outcomes = await Promise.all(
      asked.map((request) => another.create(newVerification(project, request), null)),
    );
    expect(outcomes.map(({ value }) => value.kind)).toEqual(["created", "created", kind]);
    expect(another.statements).toEqual(["create_new", "create_new", "create"]);
  });

  test("a code can be reused after its quarantine, and the window of its former holder is forgotten", async () => {
    const { liveNumber: destination } = await service.createProject();
    const held = { destination, code: "55555555", idempotencyKey: "order-2-try" };
    await service.db.query(
      `INSERT INTO live_code (destination, code, code_format, verification_id, expires_at, window_digest)
       SELECT $1, $2, 'numeric', gen_random_uuid(), done_up_to::timestamptz - interval '25 hours', sha256('former')
       FROM retention_progress WHERE task = 'expire'`,
      [held.destination, held.code],
    );
    const [id, windowDigest] = [newId(), "ab".repeat(32)];
    const { outcomes } = await createTogether([{}, { ...held, id, windowDigest }, held]);
    expect(outcomes.map(({ kind }) => kind)).toEqual(["created", "created", "conflict"]);
    const { rows } = await service.db.query(
      "SELECT verification_id, encode(window_digest, 'hex') AS digest FROM live_code WHERE code = $1",
      [held.code],
    );
    expect(rows).toEqual([{ verification_id: id, digest: windowDigest }]);
  });

  test("of equal idempotency keys one creates, equal bodies replay it, and a different body is a conflict", async () => {
    const requestDigest = createHash("sha256").update("body").digest("hex");
    const same = { idempotencyKey: "order-1-try", requestDigest };
    const { outcomes, codes } = await createTogether([{}, same, { idempotencyKey: "order-1-try" }, same]);
    expect(outcomes.map(({ kind }) => kind)).toEqual(["created", "created", "conflict", "replayed"]);
    expect(outcomes[3]).toEqual({ ...outcomes[1], kind: "replayed" });
    expect(codes).toHaveLength(2);
  });
});
