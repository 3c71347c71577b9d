import type { ServerResponse } from "node:http";
import { Code } from "@connectrpc/connect";
import type pg from "pg";
import { beforeAll, describe, expect, test, vi } from "vitest";
import { AuditService } from "../../src/gen/proto/phoneproof/v1/audit_pb.ts";
import { DestinationNumberService } from "../../src/gen/proto/phoneproof/v1/destination_number_pb.ts";
import { type Erasure, ErasureService } from "../../src/gen/proto/phoneproof/v1/erasure_pb.ts";
import { Environment } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { WebhookService } from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { readPage } from "../docs/pages.ts";
import { type Merchant, merchant, newIdempotencyKey } from "../gateway/merchant.ts";
import { tablesWith } from "../harness/every-table.ts";
import { moveExpiry } from "../harness/expiry.ts";
import { startTestService, type TestService } from "../harness/service.ts";
import { scrape } from "../ops/scrape.ts";
import { answerOf } from "../rpc/grpc-answer.ts";
import {
  type Answer,
  answerWith,
  type Receiver,
  refuseForLong,
  startReceiver,
} from "../webhooks/receiver.ts";
import { attempted, delivered, deliveriesOf, deliveryWhen, makeDue, openShop } from "../webhooks/shop.ts";
import { raceTo, untilWaiting } from "./barrier.ts";
import { createPending, eventsOf, letExpire, type Pending, uuidOf } from "./pending.ts";
import { newPhone } from "./sms-source.ts";

let service: TestService;
let receiver: Receiver;
let liveKey: string;
let shop: Merchant;

/** Echoes the event, as careless endpoints do. */
const echo: Answer = (response, { body }) => response.writeHead(200).end(body);

beforeAll(async () => {
  service = await startTestService({ WEBHOOK_ALLOW_PRIVATE: "true" });
  receiver = await startReceiver(echo);
  const opened = await openShop(service);
  await opened.setWebhook(receiver.url);
  liveKey = opened.liveKey;
  shop = merchant(service.httpUrl, liveKey);
});

type Counts = Record<"verifications" | "cancelled" | "messages" | "answers", number>;

const countsOf = (erasure: Erasure | undefined): Counts => ({
  verifications: erasure?.verifications ?? -1,
  cancelled: erasure?.cancelledVerifications ?? -1,
  messages: erasure?.messages ?? -1,
  answers: erasure?.webhookAnswers ?? -1,
});

async function erasePhone(phone: string, by = service): Promise<Counts> {
  const progress = await Array.fromAsync(by.client(ErasureService).erasePhone({ phone }));
  return countsOf(progress.at(-1)?.erasure);
}

async function eraseVerification(verificationId: string): Promise<Counts> {
  return countsOf((await service.client(ErasureService).eraseVerification({ verificationId })).erasure);
}

const nothing: Counts = { verifications: 0, cancelled: 0, messages: 0, answers: 0 };

const spelled = (phone: string) => `${phone.slice(0, 3)}-${phone.slice(3, 7)}-${phone.slice(7)}`;

/** The tables that contain the number, in either spelling. */
async function tablesWithPhone(phone: string): Promise<string[]> {
  const found = [...(await tablesWith(service.db, phone)), ...(await tablesWith(service.db, spelled(phone)))];
  return [...new Set(found)].sort();
}

/** How many rows of each kind the documented statement finds about the number, in the time that the service's own statements have. */
async function countedAbout(phone: string): Promise<Record<string, number>> {
  const sql = readPage("docs/security.md").blocks.find(({ language }) => language === "sql")?.code ?? "";
  const results: unknown = await service.db.query(
    `SELECT set_config('statement_timeout', '8s', true); ${sql.replace("01012345678", phone)}`,
  );
  const [, { rows }] = results as [unknown, pg.QueryResult<{ what: string }>];
  const kinds = Map.groupBy(rows, ({ what }) => what);
  return Object.fromEntries([...kinds].map(([what, found]) => [what, found.length]));
}

const everythingAbout = async (phone: string) => Object.keys(await countedAbout(phone)).sort();

async function send(pending: Pending, from: string): Promise<string | undefined> {
  return (await service.sms({ to: pending.to, from, text: pending.text }))[0]?.outcome;
}

async function verifiedBy(phone: string, request: object = {}): Promise<Pending> {
  const pending = await createPending(shop, request);
  expect(await send(pending, phone)).toBe("VERIFIED");
  return pending;
}

const expecting = (phone: string) => ({ mode: "match", expected_phone: phone });

describe("erasing a phone", () => {
  test("removes it from every table, and leaves finished verifications and other phones as they are", async () => {
    const [phone, stranger] = [newPhone(), newPhone()];
    const verified = await verifiedBy(phone);
    const expired = await createPending(shop, expecting(spelled(phone)));
    await letExpire(service.db, expired.id);
    const cancelled = await createPending(shop, expecting(phone));
    await shop.cancel(cancelled.id);
    const pending = await createPending(shop, expecting(phone));
    const another = await verifiedBy(stranger);
    for (const text of ["hello", "hello again"]) await service.sms({ to: pending.to, from: phone, text });
    await service.sms({ to: pending.to, from: stranger, text: `call me: +82 ${spelled(phone).slice(1)}` });
    for (const { id } of [verified, another]) await deliveryWhen(service, id, delivered);
    // Left behind by the loser of a race for an idempotency key.
    await service.db.query(
      `INSERT INTO live_code (destination, code, code_format, verification_id, expires_at, expected_phone)
       SELECT destination, '0' || code, code_format, gen_random_uuid(), expires_at, expected_phone FROM live_code
       WHERE verification_id = $1`,
      [uuidOf(pending.id)],
    );
    const before = (await shop.read(verified.id)).body;
    expect(await tablesWithPhone(phone)).toEqual([
      "inbound_message",
      "inbound_sender",
      "live_code",
      "verification",
      "webhook_attempt",
    ]);
    await deliveryWhen(service, cancelled.id, delivered);
    await deliveryWhen(service, expired.id, delivered);
    const kinds = [
      "answer",
      "code",
      "event",
      "hint",
      "idempotency record",
      "message",
      "misses",
      "verification",
    ];
    expect(await everythingAbout(phone)).toEqual(kinds);
    await service.db.query("ANALYZE");
    // The event of the verification that this cancels may be answered before or after answers are counted.
    receiver.answer = answerWith(200);

    expect(await erasePhone(`+82 ${spelled(phone).slice(1)}`)).toEqual({
      verifications: 4,
      cancelled: 1,
      messages: 4,
      answers: 3,
    });
    await deliveryWhen(service, pending.id, delivered);
    receiver.answer = echo;

    expect(await tablesWithPhone(phone)).toEqual([]);
    expect(await everythingAbout(phone)).toEqual([]);
    const { status, body } = await shop.read(verified.id);
    expect(status).toBe(200);
    expect(body).toEqual({ ...before, phone: null, server_time: body.server_time });
    expect((await shop.read(expired.id)).body).toMatchObject({ status: "expired", phone: null });
    expect((await shop.read(pending.id)).body).toMatchObject({ status: "cancelled", phone: null });
    expect((await shop.read(another.id)).body.phone).toBe(stranger);
    expect((await deliveriesOf(service, another.id))[0]?.attempts[0]?.answer).toContain(stranger);
    expect(await erasePhone(phone)).toEqual(nothing);
  });

  test("removes it from a code reserved by a creation that lost its idempotency key to another phone's", async () => {
    const [winner, loser] = [newPhone(), newPhone()];
    const key = newIdempotencyKey();
    const shopThere = merchant((await service.startAnother()).httpUrl, liveKey);
    // A process that has just seen a repeated key reserves codes first.
    const met = newIdempotencyKey();
    for (const status of [201, 200]) expect((await shopThere.create({}, met)).status).toBe(status);
    const results = await raceTo(service.db, "verification", [
      () => shop.create(expecting(winner), key),
      () => shopThere.create(expecting(loser), key),
    ]);
    expect(results.map(({ status }) => status)).toEqual([201, 409]);
    expect(await tablesWithPhone(loser)).toEqual(["live_code"]);
    expect(await erasePhone(loser)).toEqual(nothing);
    expect(await tablesWithPhone(loser)).toEqual([]);
    expect(await tablesWithPhone(winner)).toEqual(["live_code", "verification"]);
  });

  test("removes it from all codes, in whatever order they come, and from those whose verification no longer has it", async () => {
    const phone = newPhone();
    const pending = await createPending(shop, expecting(phone));
    await shop.cancel(pending.id);
    // As retention does. The code is still there if the expiry has been held back ever since.
    await service.db.query("UPDATE verification SET expected_phone = NULL WHERE id = $1", [
      uuidOf(pending.id),
    ]);
    // On each number the ids begin again, and the first batch ends amid the three codes of one.
    await service.db.query(
      `INSERT INTO live_code (destination, code, code_format, verification_id, expires_at, expected_phone)
       SELECT number, 'lost ' || n, 'numeric', lpad((n / 3)::text, 32, '0')::uuid, now() + interval '1 hour', $1
       FROM unnest('{0299999997,0299999998}'::text[]) number, generate_series(3, 6002) n`,
      [phone],
    );
    expect(await tablesWithPhone(phone)).toEqual(["live_code"]);
    expect(await erasePhone(phone)).toEqual(nothing);
    expect(await tablesWithPhone(phone)).toEqual([]);
  });

  test("leaves the same code on another number to the person whom it expects", async () => {
    const [phone, stranger] = [newPhone(), newPhone()];
    await service.db.query(
      `INSERT INTO live_code (destination, code, code_format, verification_id, expires_at, expected_phone)
       VALUES ('0299999995', 'twin', 'numeric', gen_random_uuid(), now() + interval '1 hour', $1),
              ('0299999996', 'twin', 'numeric', gen_random_uuid(), now() + interval '1 hour', $2)`,
      [phone, stranger],
    );
    await erasePhone(phone);
    expect(await tablesWithPhone(phone)).toEqual([]);
    expect(await tablesWithPhone(stranger)).toEqual(["live_code"]);
  });

  test("reports zeros for an unknown phone, also on an empty installation", async () => {
    expect(await erasePhone("010-9999-9999")).toEqual(nothing);
    const empty = await startTestService({ ROLES: "api" });
    expect(await erasePhone("01099999999", empty)).toEqual(nothing);
  });

  test.for([
    "",
    "0212345678",
    "010-1234-567",
    "vrf_01kaex4mpyf2xbtyt1s6vdr4e9",
    "01012345678\0",
  ])("refuses %j, which is no 010 mobile number", async (phone) => {
    expect(await answerOf(() => erasePhone(phone))).toMatchObject({
      code: "validation_failed",
      fields: ["phone"],
    });
  });

  test.for([
    ["with hyphens", (a: string, b: string, c: string) => `call ${a}-${b}-${c} please`],
    ["in international format", (a: string, b: string, c: string) => `+82 (${a.slice(1)}) ${b} ${c}`],
    ["with spaces around hyphens", (a: string, b: string, c: string) => `${a} - ${b} - ${c}`],
    ["encoded for a URL", (...parts: string[]) => `?to=${encodeURIComponent(parts.join(" "))}&from=010`],
    ["encoded for a URL, in full width", (...parts: string[]) => parts.join("%20").replaceAll("%", "\uFF05")],
    ["beside a percent sign", (...parts: string[]) => `50%${parts.join("")}`],
    ["digit by digit", (...parts: string[]) => [...parts.join("")].join(" ")],
    [
      "in full-width digits",
      (...parts: string[]) =>
        parts.join("").replace(/\d/g, (digit) => String.fromCharCode(0xff10 + Number(digit))),
    ],
  ] as const)("finds it in another sender's text %s", async ([, spell]) => {
    const phone = newPhone();
    const text = spell(phone.slice(0, 3), phone.slice(3, 7), phone.slice(7));
    await service.sms({ to: "0200000000", from: newPhone(), text });
    expect(await everythingAbout(phone)).toEqual(["message"]);
    expect(await erasePhone(phone)).toMatchObject({ messages: 1 });
    expect(await tablesWith(service.db, text)).toEqual([]);
  });

  test("finds it where a source reported it as the destination, unless it is a receiving number", async () => {
    const [phone, receiving, sender] = [newPhone(), newPhone(), newPhone()];
    const numbers = service.client(DestinationNumberService);
    const { projectId, liveKey, liveNumber } = await service.createProject();
    await numbers.addDestinationNumber({ number: receiving, environment: Environment.LIVE, projectId });
    await numbers.removeDestinationNumber({ number: liveNumber });
    for (const to of [phone, receiving]) await service.sms({ to, from: sender, text: "hello" });
    const pending = await createPending(merchant(service.httpUrl, liveKey));
    expect(pending.to).toBe(receiving);
    expect(await send(pending, newPhone())).toBe("VERIFIED");
    for (const [erased, messages] of [
      [phone, 1],
      [receiving, 0],
    ] as const)
      expect(await erasePhone(erased)).toEqual({ ...nothing, messages });
    expect(await tablesWithPhone(phone)).toEqual([]);
    await numbers.removeDestinationNumber({ number: receiving });
    // Not the one that verified: that is its sender's.
    expect(await erasePhone(receiving)).toEqual({ ...nothing, messages: 1 });
  });

  test("leaves no request digest from which it could be computed, and every creation can still be replayed", async () => {
    const phone = newPhone();
    const [parentOrigin, returnUrl] = ["https://shop.example", "https://shop.example/done"];
    const seller = await service.createProject({ parentOrigin, returnUrl });
    const shop = merchant(service.httpUrl, seller.liveKey);
    const addresses = { parent_origin: parentOrigin, return_url: returnUrl };
    const bodies = [
      { ...expecting(phone), ...addresses, state: "상태", client_reference: 'ref "1"' },
      {},
      { expected_phone: phone },
    ];
    const keys = bodies.map(() => newIdempotencyKey());
    const digestsOf = async () => {
      const { rows } = await service.db.query(
        "SELECT encode(request_digest, 'hex') AS digest FROM idempotency_record WHERE key = ANY ($1) ORDER BY array_position($1, key)",
        [keys],
      );
      return rows.map(({ digest }) => digest);
    };
    const created = [];
    for (const [index, body] of bodies.entries()) created.push(await shop.create(body, keys[index]));
    for (const { body } of created.slice(1))
      await service.sms({ to: body.destination, from: phone, text: body.sms_text });
    const before = await digestsOf();
    expect(await erasePhone(phone)).toMatchObject({ verifications: 3 });
    const after = await digestsOf();
    expect(after).toHaveLength(3);
    for (const digest of before) expect(after).not.toContain(digest);

    // What is kept does not depend on the phone that was expected.
    const other = newPhone();
    const twin = await shop.create({ ...bodies[0], ...expecting(other) });
    await service.client(ErasureService).eraseVerification({ verificationId: twin.body.id });
    const { rows } = await service.db.query(
      "SELECT encode(request_digest, 'hex') AS digest FROM idempotency_record WHERE verification_id = $1",
      [uuidOf(twin.body.id)],
    );
    expect(rows).toEqual([{ digest: after[0] }]);

    for (const [index, body] of bodies.entries()) {
      const again = await shop.create(body, keys[index]);
      expect([again.status, again.text]).toEqual([200, created[index]?.text]);
      const changed = await shop.create({ ...body, state: "another" }, keys[index]);
      expect([changed.status, changed.body.error?.code]).toEqual([409, "idempotency_conflict"]);
    }
    expect((await shop.read(created[0]?.body.id ?? "")).body.status).toBe("cancelled");
  });

  test("finds it in what an endpoint answered to an event of another verification", async () => {
    const phone = newPhone();
    // Nothing else is delivered to this endpoint.
    const answer = answerWith(200, {}, JSON.stringify({ user: { phone: spelled(phone) } }));
    const seller = await openShop(service);
    await seller.setWebhook((await startReceiver(answer)).url);
    await deliveryWhen(service, await seller.event(), delivered);
    expect(await tablesWithPhone(phone)).toEqual(["webhook_attempt"]);
    expect(await erasePhone(phone)).toEqual({ ...nothing, answers: 1 });
    expect(await tablesWithPhone(phone)).toEqual([]);
  });

  test("looks at a bounded number of answers at once, however often each delivery was attempted", async () => {
    const phone = newPhone();
    const pendings = await Promise.all(Array.from({ length: 12 }, () => createPending(shop)));
    for (const { id } of pendings) {
      await shop.cancel(id);
      await deliveryWhen(service, id, delivered);
    }
    // As after a hundred resends to an endpoint that failed each time.
    await service.db.query(
      `INSERT INTO webhook_attempt (verification_id, number, started_at, duration_ms, status, error, answer)
       SELECT id, 1 + n, now(), 5, 502, '502 Bad Gateway', $2 FROM unnest($1::uuid[]) AS id, generate_series(1, 1000) AS n`,
      [pendings.map(({ id }) => uuidOf(id)), `no such customer: ${phone}`],
    );
    const progress = await Array.fromAsync(service.client(ErasureService).erasePhone({ phone }));
    const answers = progress.map(({ erasure }) => countsOf(erasure).answers);
    expect(answers.at(-1)).toBe(12_000);
    // Five thousand, and the rest of the last delivery.
    expect(Math.max(...answers.map((sum, index) => sum - (answers[index - 1] ?? 0)))).toBeLessThanOrEqual(
      6_001,
    );
    expect(await tablesWithPhone(phone)).toEqual([]);
  });

  test("finds it in any digits that Unicode knows", async () => {
    const phone = newPhone();
    const variants = Array.from({ length: 10 }, () => [] as string[]);
    for (let point = 0x80; point <= 0x10ffff; point++) {
      const character = String.fromCodePoint(point);
      const normal = character.normalize("NFKC");
      if (/^[(]?\d[.,)]?$/.test(normal)) variants[Number(/\d/.exec(normal)?.[0])]?.push(character);
    }
    const most = Math.max(...variants.map(({ length }) => length));
    const spelledBy = (index: number) =>
      [...phone].map((digit) => variants[Number(digit)]?.[index % (variants[Number(digit)]?.length ?? 0)]);
    const { destination: to } = (await shop.create({})).body;
    const from = newPhone();
    const texts = Array.from({ length: most }, (_, index) => `\u0301${spelledBy(index).join("\u0301")}`);
    await service.sms(...texts.map((text) => ({ to, from, text })));
    expect(await countedAbout(phone)).toEqual({ message: most });
    expect(await erasePhone(phone)).toEqual({ ...nothing, messages: most });
  });

  test("ends although hundreds of texts have only combining marks, which Postgres would take minutes to sort", async () => {
    const phone = newPhone();
    const { destination: to } = (await shop.create({})).body;
    const text = `${"\u0315\u0300".repeat(990)}${spelled(phone)}`;
    await service.sms(...Array.from({ length: 600 }, () => ({ to, from: newPhone(), text })));
    expect(await countedAbout(phone)).toEqual({ message: 600 });
    expect(await erasePhone(phone)).toEqual({ ...nothing, messages: 600 });
  });

  test("is logged in the audit log, with the phone masked", async () => {
    const phone = newPhone();
    await erasePhone(phone);
    const { entries } = await service.client(AuditService).listAuditEntries({ pageSize: 1 });
    expect(entries).toMatchObject([{ action: "data.erased", subject: `010-****-${phone.slice(7)}` }]);
  });

  test.for(["live", "test"])("removes its misses in the %s environment", async (environment) => {
    const phone = newPhone();
    const { testKey } = await service.createProject();
    const pending = await createPending(environment === "live" ? shop : merchant(service.httpUrl, testKey));
    for (let miss = 0; miss < 4; miss++)
      await service.sms({ to: pending.to, from: phone, text: `miss ${miss}` });
    await erasePhone(phone);
    expect(await service.sms({ to: pending.to, from: phone, text: "miss again" })).toMatchObject([
      { outcome: "NO_MATCH" },
    ]);
    expect(await send(pending, phone)).toBe("VERIFIED");
  });

  test("removes its misses even if another one is being counted when the erasure begins", async () => {
    const phone = newPhone();
    const pending = await createPending(shop);
    await service.sms({ to: pending.to, from: phone, text: "a miss" });
    const holder = await service.db.connect();
    let erasing: Promise<unknown> = Promise.resolve();
    try {
      await holder.query("BEGIN");
      await holder.query("UPDATE inbound_sender SET miss_times = miss_times || now() WHERE phone = $1", [
        phone,
      ]);
      erasing = erasePhone(phone);
      await untilWaiting(service.db, 1);
    } finally {
      await holder.query("COMMIT");
      holder.release();
    }
    await erasing;
    expect(await tablesWithPhone(phone)).toEqual([]);
  });

  test("a message sent again with its id gets its first receipt, and nothing of it is stored again", async () => {
    const phone = newPhone();
    const pending = await createPending(shop);
    const message = { to: pending.to, from: phone, text: pending.text, messageId: "again" };
    const [first] = await service.sms(message);
    await erasePhone(phone);
    expect(await service.sms(message)).toEqual([{ ...first, duplicate: true }]);
    expect(await tablesWithPhone(phone)).toEqual([]);
  });
});

/** A code on another number, left behind by a request that lost the race for this verification's idempotency key. */
async function addLostCode(verificationId: string): Promise<void> {
  await service.db.query(
    `INSERT INTO live_code (destination, code, code_format, verification_id, expires_at, expected_phone)
     SELECT '0299999999', code, code_format, gen_random_uuid(), expires_at, expected_phone FROM live_code
     WHERE verification_id = $1`,
    [uuidOf(verificationId)],
  );
}

describe("erasing a verification", () => {
  test("removes its phone from codes reserved on other numbers by a race of its own creation", async () => {
    const phone = newPhone();
    const pending = await createPending(shop, expecting(phone));
    const others = await createPending(shop, expecting(phone));
    await addLostCode(pending.id);
    const barred = async () => {
      const { rows } = await service.db.query<{ id: string }>(
        "SELECT verification_id AS id FROM live_code WHERE expected_phone = $1",
        [phone],
      );
      return rows.map(({ id }) => id);
    };
    expect(await barred()).toHaveLength(3);
    expect(await eraseVerification(pending.id)).toMatchObject({ verifications: 1 });
    expect(await barred()).toEqual([uuidOf(others.id)]);
  });

  test.for([
    {
      what: "even if retention has already erased it from the verification",
      // The code is still there if the expiry has been held back ever since.
      sql: "UPDATE verification SET expected_phone = NULL WHERE id = $1",
    },
    {
      what: "also if its own code is already in use for somebody else",
      sql: "UPDATE live_code SET verification_id = gen_random_uuid(), expected_phone = NULL WHERE verification_id = $1",
    },
  ])("removes its phone from the codes of its creation, $what", async ({ sql }) => {
    const phone = newPhone();
    const pending = await createPending(shop, expecting(phone));
    await shop.cancel(pending.id);
    await addLostCode(pending.id);
    await service.db.query(sql, [uuidOf(pending.id)]);
    expect(await tablesWithPhone(phone)).toContain("live_code");
    await eraseVerification(pending.id);
    expect(await tablesWithPhone(phone)).toEqual([]);
  });

  test("leaves the codes of others that end at the same time, even if retention has already erased its phone", async () => {
    const stranger = newPhone();
    const mine = await createPending(shop, expecting(newPhone()));
    const twin = await createPending(shop, expecting(stranger));
    expect(twin.to).toBe(mine.to);
    await moveExpiry(service.db, {
      expiresAt: "now() + interval '5 minutes'",
      where: "id = ANY ($1)",
      values: [[uuidOf(mine.id), uuidOf(twin.id)]],
    });
    await shop.cancel(mine.id);
    await service.db.query("UPDATE verification SET expected_phone = NULL WHERE id = $1", [uuidOf(mine.id)]);
    await eraseVerification(mine.id);
    expect(await tablesWithPhone(stranger)).toEqual(["live_code", "verification"]);
  });

  test("removes its phones and messages, and no others", async () => {
    const [phone, stranger] = [newPhone(), newPhone()];
    const elsewhere = await verifiedBy(phone);
    const verification = await createPending(shop, expecting(phone));
    expect(await send(verification, stranger)).toBe("SENDER_MISMATCH");
    expect(await send(verification, phone)).toBe("VERIFIED");
    await deliveryWhen(service, verification.id, delivered);
    expect(await tablesWithPhone(stranger)).toEqual(["inbound_message", "inbound_sender"]);

    expect(await eraseVerification(verification.id)).toEqual({
      verifications: 1,
      cancelled: 0,
      messages: 2,
      answers: 1,
    });

    expect(await tablesWithPhone(stranger)).toEqual([]);
    expect((await shop.read(verification.id)).body).toMatchObject({ status: "verified", phone: null });
    expect((await shop.read(elsewhere.id)).body.phone).toBe(phone);
    const { rows } = await service.db.query("SELECT verification_id FROM inbound_message WHERE sender = $1", [
      phone,
    ]);
    expect(rows).toEqual([{ verification_id: uuidOf(elsewhere.id) }]);
    expect(await eraseVerification(verification.id)).toEqual(nothing);

    expect(await eraseVerification(elsewhere.id)).toMatchObject({ verifications: 1, messages: 1 });
    expect(await tablesWithPhone(phone)).toEqual([]);
  });

  test("removes its phones before it searches all messages, however long that takes", async () => {
    const phone = newPhone();
    const verified = await verifiedBy(phone);
    // It contains the code but was not assigned to the verification: only the full search finds it.
    const text = `[Web발신] ${verified.text}`;
    await service.sms({ to: verified.to, from: newPhone(), text });
    const holder = await service.db.connect();
    await holder.query("BEGIN");
    await holder.query("SELECT FROM inbound_message WHERE text = $1 FOR UPDATE", [text]);
    const erasing = eraseVerification(verified.id);
    try {
      await expect.poll(() => tablesWithPhone(phone)).toEqual([]);
    } finally {
      await holder.query("COMMIT");
      holder.release();
    }
    expect(await erasing).toMatchObject({ verifications: 1, messages: 2 });
    expect(await tablesWith(service.db, verified.text)).toEqual(["verification"]);
  });

  test("removes the misses of the expected phone, even if it never sent the code", async () => {
    const phone = newPhone();
    const verification = await createPending(shop, expecting(phone));
    await service.sms({ to: verification.to, from: phone, text: "a miss" });
    expect(await tablesWithPhone(phone)).toContain("inbound_sender");
    await eraseVerification(verification.id);
    expect(await tablesWithPhone(phone)).toEqual(["inbound_message"]);
  });

  test("keeps the misses of its phones in the other environment", async () => {
    const phone = newPhone();
    const { testKey } = await service.createProject();
    const trial = await createPending(merchant(service.httpUrl, testKey));
    for (let miss = 0; miss < 4; miss++)
      await service.sms({ to: trial.to, from: phone, text: `miss ${miss}` });
    await eraseVerification((await verifiedBy(phone)).id);
    await service.sms({ to: trial.to, from: phone, text: "the fifth miss" });
    expect(await send(trial, phone)).toBe("MUTED");
  });

  test.for([
    { name: "while the code is in quarantine", since: "0 seconds" },
    { name: "once the code may be assigned again", since: "26 hours" },
  ])("removes every message with its code, whatever the outcome was, $name", async ({ since }) => {
    const [verification, other] = [await createPending(shop), await createPending(shop)];
    const { to, code } = verification;
    const [ambiguous, fromWeb, guesser] = [newPhone(), newPhone(), newPhone()];
    const [longer, elsewhere] = [newPhone(), newPhone()];
    const nowhere = `0277${to.slice(-6)}`;
    const guesses = ["one", "two", "three", "four", "five"].map((text) => ({ to, from: guesser, text }));
    const receipts = await service.sms(
      { to, from: ambiguous, text: `${other.code} / ${code}` },
      { to, from: fromWeb, text: `[Web발신] ${code}, ${other.code}` },
      ...guesses,
      { to, from: guesser, text: `${code.slice(0, 4)}-${code.slice(4)}` },
      { to, from: longer, text: `${code}0` },
      { to: nowhere, from: elsewhere, text: code },
    );
    expect(receipts.filter(({ outcome }) => outcome !== "NO_MATCH")).toMatchObject([
      { outcome: "AMBIGUOUS", verificationId: "" },
      { outcome: "WEB_SENT", verificationId: "" },
      { outcome: "MUTED", verificationId: "" },
    ]);
    await shop.cancel(verification.id);
    await service.db.query(
      `WITH moved AS (
         UPDATE verification SET created_at = created_at - $2::interval, expires_at = expires_at - $2::interval WHERE id = $1
       ),
       messages AS (UPDATE inbound_message SET ingested_at = ingested_at - $2::interval WHERE destination = $3)
       DELETE FROM live_code WHERE verification_id = $1 AND $2::interval > '0'`,
      [uuidOf(verification.id), since, to],
    );

    expect(await eraseVerification(verification.id)).toMatchObject({ messages: 3 });

    for (const phone of [ambiguous, fromWeb]) expect(await tablesWithPhone(phone)).toEqual([]);
    const { rows } = await service.db.query("SELECT text FROM inbound_message WHERE sender = $1", [guesser]);
    expect(rows.map(({ text }) => text).sort()).toEqual(guesses.map(({ text }) => text).sort());
    expect(await send(other, guesser)).toBe("VERIFIED");
    expect(await tablesWithPhone(longer)).toEqual(["inbound_message", "inbound_sender"]);
    expect(await tablesWithPhone(elsewhere)).toEqual(["inbound_message"]);
    expect(await eraseVerification(verification.id)).toEqual(nothing);
  });

  test("keeps messages with what looks like a code in its project's name, also once its own may be assigned again", async () => {
    const number = "98765432";
    const { liveKey } = await service.createProject({ name: `Shop ${number}` });
    const shopThere = merchant(service.httpUrl, liveKey);
    const { id, to, text } = await createPending(shopThere);
    await shopThere.cancel(id);
    const [carrier, stranger] = [newPhone(), newPhone()];
    await service.sms(
      { to, from: carrier, text: `[Web발신] ${text.replace(number, "")}` },
      { to, from: stranger, text: number },
    );
    await service.db.query("DELETE FROM live_code WHERE verification_id = $1", [uuidOf(id)]);
    expect(await eraseVerification(id)).toMatchObject({ messages: 1 });
    expect(await tablesWithPhone(carrier)).toEqual([]);
    expect(await tablesWithPhone(stranger)).toContain("inbound_message");
  });

  test("finds a message with its code behind thousands to other numbers, and leaves one of another source with the same id", async () => {
    const [phone, stranger] = [newPhone(), newPhone()];
    const { id, to, code } = await createPending(shop);
    await shop.cancel(id);
    await service.db.query(
      `INSERT INTO inbound_message (source, message_id, sender, destination, text, ingested_at, outcome, duplicate)
       SELECT 'elsewhere', n::text, $1, '0200000000', 'hello', now(), 'no_match', false FROM generate_series(1, 5001) n`,
      [newPhone()],
    );
    await service.sms({ to, from: phone, text: `[Web발신] ${code}` });
    // With a miss, so that something is stored about the sender.
    await service.sms({ to, from: stranger, text: "000000" });
    await service.db.query(
      `INSERT INTO inbound_message (source, message_id, sender, destination, text, ingested_at, outcome, duplicate)
       SELECT 'another', message_id, $2, destination, 'hello', ingested_at, outcome, duplicate
       FROM inbound_message WHERE sender = $1`,
      [phone, stranger],
    );
    const before = await everythingAbout(stranger);
    expect(await eraseVerification(id)).toMatchObject({ messages: 1 });
    expect(await tablesWithPhone(phone)).toEqual([]);
    expect(await tablesWithPhone(stranger)).toEqual(["inbound_message", "inbound_sender"]);
    expect(await everythingAbout(stranger)).toEqual(before);
  });

  test.for([
    { name: "within 24 hours after its expiry: removed", ago: "23 hours 59 minutes", messages: 1 },
    {
      name: "more than 24 hours after its expiry, when the code may be another's: kept",
      ago: "24 hours 1 minute",
      messages: 0,
    },
  ])("a message with its code $name", async ({ ago, messages }) => {
    const phone = newPhone();
    const { id, to, code } = await createPending(shop);
    await moveExpiry(service.db, {
      expiresAt: "now() - $2::interval",
      where: "id = $1",
      values: [uuidOf(id), ago],
    });
    // A web-sent message is not assigned to a verification that has ended.
    expect(await service.sms({ to, from: phone, text: `[Web발신] ${code}` })).toMatchObject([
      { outcome: "WEB_SENT", verificationId: "" },
    ]);
    expect(await eraseVerification(id)).toMatchObject({ messages });
    expect(await tablesWithPhone(phone)).toEqual(messages === 0 ? ["inbound_message"] : []);
  });

  test("finds a message with its code that came by a clock set back since, and none with the code of its twin", async () => {
    const [mine, twin] = [await createPending(shop), await createPending(shop)];
    expect(twin.to).toBe(mine.to);
    for (const { id } of [mine, twin]) await shop.cancel(id);
    // Created in the same millisecond.
    await moveExpiry(service.db, {
      expiresAt: "now() + interval '5 minutes'",
      where: "id = ANY ($1)",
      values: [[uuidOf(mine.id), uuidOf(twin.id)]],
    });
    const [from, other] = [newPhone(), newPhone()];
    const webSent = ({ to, code }: Pending, from: string) => ({ to, from, text: `[Web발신] ${code}` });
    await service.sms(webSent(mine, from), webSent(twin, other));
    await service.db.query(
      `UPDATE inbound_message SET ingested_at = (SELECT created_at FROM verification WHERE id = $1) - interval '59 minutes'
       WHERE sender = $2`,
      [uuidOf(mine.id), from],
    );
    expect(await eraseVerification(mine.id)).toMatchObject({ messages: 1 });
    expect(await tablesWithPhone(from)).toEqual([]);
    expect(await tablesWithPhone(other)).toContain("inbound_message");
    expect(await eraseVerification(twin.id)).toMatchObject({ messages: 1 });
  });

  test("erases as many messages as were assigned to it", async () => {
    const { id } = await verifiedBy(newPhone());
    const phone = newPhone();
    await service.db.query(
      `INSERT INTO inbound_message (source, message_id, sender, destination, text, ingested_at, outcome, verification_id, duplicate)
       SELECT 'late', n::text, $1, '0200000000', 'late', now(), 'late', $2, false FROM generate_series(1, 5000) n`,
      [phone, uuidOf(id)],
    );
    expect(await eraseVerification(id)).toMatchObject({ messages: 5_001 });
    expect(await tablesWithPhone(phone)).toEqual([]);
  });

  test("cancels a pending one, with its event, and no SMS verifies it any more", async () => {
    const phone = newPhone();
    const pending = await createPending(shop, expecting(phone));
    expect(await eraseVerification(pending.id)).toMatchObject({ verifications: 1, cancelled: 1 });
    expect(await eventsOf(service.db, pending.id)).toEqual(["verification.cancelled"]);
    expect(await send(pending, phone)).toBe("NOT_PENDING");
    expect((await shop.read(pending.id)).body).toMatchObject({ status: "cancelled", phone: null });
    await deliveryWhen(service, pending.id, delivered);
  });

  test("counts a pending one that has no number, which it cancels", async () => {
    const { id } = await createPending(shop);
    expect(await eraseVerification(id)).toMatchObject({ verifications: 1, cancelled: 1 });
  });

  test("expires one that is past its expiry but still pending, instead of cancelling it", async () => {
    const idle = await startTestService({ ROLES: "api" });
    const { liveKey } = await idle.createProject();
    const pending = await createPending(merchant(idle.httpUrl, liveKey), expecting(newPhone()));
    await letExpire(idle.db, pending.id);
    const { erasure } = await idle.client(ErasureService).eraseVerification({ verificationId: pending.id });
    expect(countsOf(erasure)).toMatchObject({ verifications: 1, cancelled: 0 });
    expect(await eventsOf(idle.db, pending.id)).toEqual(["verification.expired"]);
    const { sum } = await scrape(idle.opsUrl);
    expect(sum("phoneproof_verifications_total", { transition: "expired" })).toBe(1);
  });

  test.for(["vrf_01kaex4mpyf2xbtyt1s6vdr4e9", "nonsense", "", "vrf_\0"])("%j is not found", async (id) => {
    expect(await answerOf(() => eraseVerification(id))).toMatchObject({ code: "verification_not_found" });
  });
});

describe("webhooks", () => {
  test("an answer that arrives after the erasure is not stored", async () => {
    const phone = newPhone();
    let held: ServerResponse | undefined;
    receiver.answer = (response, { body }) => {
      if (body.includes(phone)) held = response;
      else response.writeHead(204).end();
    };
    const { id } = await verifiedBy(phone);
    const response = await vi.waitUntil(() => held, { timeout: 45_000, interval: 5 });
    await erasePhone(phone);
    response.writeHead(200).end(`thanks for ${phone}`);
    const { attempts } = await deliveryWhen(service, id, delivered);
    expect(attempts).toMatchObject([{ status: 200, answer: "" }]);
    expect(await tablesWithPhone(phone)).toEqual([]);
    receiver.answer = echo;
  });

  test("an event not yet delivered is delivered without the phone", async () => {
    const phone = newPhone();
    receiver.answer = refuseForLong(500);
    const { id } = await verifiedBy(phone);
    const eventId = id.replace("vrf_", "evt_");
    const untilReceived = (count: number) =>
      vi.waitUntil(
        () => {
          const own = receiver.received.filter(({ headers }) => headers["webhook-id"] === eventId);
          return own.length >= count ? own : undefined;
        },
        { timeout: 45_000, interval: 5 },
      );
    await deliveryWhen(service, id, attempted(1));
    // The endpoint's answer was empty.
    expect(await eraseVerification(id)).toMatchObject({ verifications: 1, answers: 0 });
    receiver.answer = echo;
    await makeDue(service, id);
    await deliveryWhen(service, id, delivered);
    const [beforeErasure, again] = (await untilReceived(2)).map(({ body }) => JSON.parse(body));
    expect(beforeErasure.data.phone).toBe(phone);
    expect(again).toEqual({ ...beforeErasure, data: { ...beforeErasure.data, phone: null } });
    await service.client(WebhookService).resendWebhookEvent({ eventId });
    await untilReceived(3);
    expect(await tablesWithPhone(phone)).toEqual([]);
  });
});

describe("concurrency", () => {
  test("an SMS that is first verifies, and its data is erased", async () => {
    const phone = newPhone();
    const pending = await createPending(shop, expecting(phone));
    const [outcome] = await raceTo(service.db, "event", [
      () => send(pending, phone),
      () => eraseVerification(pending.id),
    ]);
    expect(outcome).toBe("VERIFIED");
    expect((await shop.read(pending.id)).body).toMatchObject({ status: "verified", phone: null });
    expect(await eventsOf(service.db, pending.id)).toEqual(["verification.verified"]);
  });

  test("an erasure that is first cancels, and the SMS gets NOT_PENDING", async () => {
    const phone = newPhone();
    const pending = await createPending(shop, expecting(phone));
    const [erasure, outcome] = await raceTo(service.db, "event", [
      () => erasePhone(phone),
      () => send(pending, phone),
    ]);
    expect([erasure.cancelled, outcome]).toEqual([1, "NOT_PENDING"]);
    expect((await shop.read(pending.id)).body).toMatchObject({ status: "cancelled", phone: null });
  });

  test("many at once leave connections to other calls", async () => {
    const lock = await service.db.connect();
    try {
      await lock.query("BEGIN; LOCK TABLE inbound_sender");
      const erasures = Array.from({ length: 30 }, () => erasePhone(newPhone()));
      await untilWaiting(service.db, 1);
      expect((await shop.create()).status).toBe(201);
      await lock.query("ROLLBACK");
      for (const counts of await Promise.all(erasures)) expect(counts.verifications).toBe(0);
    } finally {
      lock.release(true);
    }
  });

  test("a key that meanwhile belongs to another verification can still be replayed", async () => {
    const [key, nextKey] = [newIdempotencyKey(), newIdempotencyKey()];
    const phone = newPhone();
    const { body } = await shop.create(expecting(phone), key);
    const next = await shop.create({}, nextKey);
    const client = await service.db.connect();
    // Its records can be read, and not be changed yet.
    await client.query("BEGIN; LOCK TABLE idempotency_record IN EXCLUSIVE MODE");
    const erasing = eraseVerification(body.id);
    await untilWaiting(service.db, 1);
    // Should it be interrupted, the next one finds by the phone what is left.
    expect(await tablesWithPhone(phone)).toContain("verification");
    // As if a day had passed.
    await client.query("DELETE FROM idempotency_record WHERE key = $1", [key]);
    await client.query("UPDATE idempotency_record SET key = $1 WHERE key = $2", [key, nextKey]);
    await client.query("COMMIT");
    client.release();
    await erasing;
    const again = await shop.create({}, key);
    expect([again.status, again.text]).toEqual([200, next.text]);
  });

  test("data that arrives from the phone after the erasure began is neither waited for nor erased", async () => {
    const phone = newPhone();
    const before = await verifiedBy(phone);
    const holder = await service.db.connect();
    await holder.query("BEGIN");
    await holder.query("SELECT FROM verification WHERE id = $1 FOR UPDATE", [uuidOf(before.id)]);
    const erasing = erasePhone(phone);
    const after: Pending[] = [];
    try {
      await untilWaiting(service.db, 1);
      after.push(await verifiedBy(phone), await createPending(shop, expecting(phone)));
    } finally {
      await holder.query("COMMIT");
      holder.release();
    }
    expect(await erasing).toMatchObject({ verifications: 1, messages: 1 });
    expect((await shop.read(before.id)).body).toMatchObject({ phone: null });
    const places = await tablesWithPhone(phone);
    expect(places).toEqual(expect.arrayContaining(["inbound_message", "live_code", "verification"]));
    expect(await erasePhone(phone)).toMatchObject({ verifications: after.length, messages: 1 });
    expect(await tablesWithPhone(phone)).toEqual([]);
  });

  test("concurrent erasures remove thousands of messages and verifications while SMS arrive", async () => {
    const [phone, other] = [newPhone(), newPhone()];
    const model = await createPending(shop);
    await service.db.query(
      `INSERT INTO inbound_message (source, message_id, sender, destination, text, ingested_at, outcome, duplicate)
       SELECT 'bulk', n::text, CASE WHEN n % 2 = 0 THEN $1 ELSE $2 END, '0200000000', 'bulk',
         now() - CASE WHEN n < 7000 THEN interval '1 day' ELSE make_interval(secs => n) END, 'no_match', false
       FROM generate_series(1, 12000) n`,
      [phone, other],
    );
    await service.db.query(
      `INSERT INTO verification (id, project_id, environment, mode, status, phone, client_reference, state, destination,
         sms_text, created_at, expires_at, verified_at)
       SELECT uuidv7(), project_id, environment, mode, 'verified', CASE WHEN n % 2 = 0 THEN $1 ELSE $2 END,
         '', '', destination, '', created_at, expires_at, created_at
       FROM verification, generate_series(1, 6000) n WHERE id = $3`,
      [phone, other, uuidOf(model.id)],
    );
    const neighbour = await service.startAnother({ ROLES: "api" });
    let busy = true;
    const outcomes = new Set<string | undefined>();
    const living = (async () => {
      while (busy) {
        const pending = await createPending(shop);
        outcomes.add(await send(pending, newPhone()));
      }
    })();
    const counts = await Promise.all([
      erasePhone(phone),
      erasePhone(other, neighbour),
      erasePhone(phone, neighbour),
      erasePhone(other),
    ]);
    busy = false;
    await living;
    const sum = (name: keyof Counts) => counts.reduce((total, count) => total + count[name], 0);
    expect([sum("verifications"), sum("messages")]).toEqual([6000, 12000]);
    for (const erased of [phone, other]) expect(await tablesWithPhone(erased)).toEqual([]);
    expect([...outcomes]).toEqual(["VERIFIED"]);
  });
});

describe("an interrupted erasure", () => {
  let quiet: TestService;

  beforeAll(async () => {
    quiet = await startTestService({ ROLES: "api" });
  });

  /** Inserts three batches of messages from a new phone; the second cannot be erased until `release`. */
  async function heldInTheMiddle() {
    const phone = newPhone();
    await quiet.db.query("DELETE FROM inbound_message");
    await quiet.db.query(
      `INSERT INTO inbound_message (source, message_id, sender, destination, text, ingested_at, outcome, duplicate)
       SELECT 'bulk', n::text, $1, '0200000000', 'bulk', now() - make_interval(secs => n), 'no_match', false
       FROM generate_series(1, 15000) n`,
      [phone],
    );
    const holder = await quiet.db.connect();
    await holder.query("BEGIN");
    await holder.query("SELECT FROM inbound_message WHERE message_id = '7000' FOR UPDATE");
    return {
      phone,
      async release() {
        await holder.query("COMMIT");
        holder.release();
      },
      async isLeft(n: number) {
        const { rows } = await quiet.db.query("SELECT sender FROM inbound_message WHERE message_id = $1", [
          n,
        ]);
        return rows[0].sender === phone;
      },
    };
  }

  test("stops after the current batch when the client disconnects, and the next erasure finishes it", async () => {
    const { phone, release, isLeft } = await heldInTheMiddle();
    const client = quiet.client(ErasureService);
    const leave = new AbortController();
    const erasing = Array.fromAsync(client.erasePhone({ phone }, { signal: leave.signal }));
    erasing.catch(() => {});
    await untilWaiting(quiet.db, 1);
    expect([await isLeft(15000), await isLeft(7000)]).toEqual([false, true]);
    leave.abort();
    await expect(erasing).rejects.toMatchObject({ code: Code.Canceled });
    // Sent on the same connection: once this is answered, the service knows of the cancellation.
    await answerOf(() => client.eraseVerification({ verificationId: "nonsense" }));
    await release();
    await vi.waitUntil(async () => !(await isLeft(7000)), { timeout: 45_000, interval: 5 });
    await erasePhone("01099999999", quiet);
    expect(await isLeft(1)).toBe(true);
    expect(await erasePhone(phone, quiet)).toEqual({ ...nothing, messages: 5000 });
    expect(await tablesWith(quiet.db, phone)).toEqual([]);
  });

  test("is not reported as done when the service stops", async () => {
    const { phone, release, isLeft } = await heldInTheMiddle();
    const stopping = await quiet.startAnother();
    const erasing = erasePhone(phone, stopping);
    erasing.catch(() => {});
    await untilWaiting(quiet.db, 1);
    const stopped = stopping.close();
    await release();
    await expect(erasing).rejects.toMatchObject({ code: Code.Unavailable });
    await stopped;
    expect(await isLeft(1)).toBe(true);
    await erasePhone(phone, quiet);
    expect(await tablesWith(quiet.db, phone)).toEqual([]);
  });

  test.for([
    { what: "a phone", erase: (phone: string) => erasePhone(phone, quiet) },
    {
      what: "a verification",
      async erase(phone: string) {
        const project = await quiet.createProject();
        const { id } = await createPending(merchant(quiet.httpUrl, project.liveKey), expecting(phone));
        return await quiet.client(ErasureService).eraseVerification({ verificationId: id });
      },
    },
  ])("of $what has removed it from the codes before the batch that it waits for", async ({ erase }) => {
    const phone = newPhone();
    // Codes without a verification, as of creations that lost their idempotency keys.
    await quiet.db.query(
      `INSERT INTO live_code (destination, code, code_format, verification_id, expires_at, expected_phone)
       SELECT '0200000000', $1 || n, 'numeric', lpad(n::text, 32, '0')::uuid, now() + interval '1 hour', $1
       FROM generate_series(1, 15000) n`,
      [phone],
    );
    const isLeft = async (n: number) => {
      const { rows } = await quiet.db.query("SELECT expected_phone FROM live_code WHERE code = $1", [
        phone + n,
      ]);
      return rows[0].expected_phone === phone;
    };
    const holder = await quiet.db.connect();
    await holder.query("BEGIN");
    await holder.query("SELECT FROM live_code WHERE code = $1 FOR UPDATE", [`${phone}7000`]);
    const erasing = erase(phone);
    await untilWaiting(quiet.db, 1);
    expect([await isLeft(1), await isLeft(7000), await isLeft(15000)]).toEqual([false, true, true]);
    await holder.query("COMMIT");
    holder.release();
    await erasing;
    const { rowCount } = await quiet.db.query("SELECT FROM live_code WHERE expected_phone = $1", [phone]);
    expect(rowCount).toBe(0);
  });

  test("of a verification whose phone retention has erased finds the rest of its codes when it is repeated", async () => {
    const phone = newPhone();
    const project = await quiet.createProject();
    const shopThere = merchant(quiet.httpUrl, project.liveKey);
    const pending = await createPending(shopThere, expecting(phone));
    await shopThere.cancel(pending.id);
    await quiet.db.query("UPDATE verification SET expected_phone = NULL WHERE id = $1", [uuidOf(pending.id)]);
    // Behind its own code, which is in the first batch.
    await quiet.db.query(
      `INSERT INTO live_code (destination, code, code_format, verification_id, expires_at, expected_phone)
       SELECT '0299999999', 'lost ' || n, 'numeric', lpad(n::text, 32, '0')::uuid, now() + interval '1 hour', $1
       FROM generate_series(1, 6000) n`,
      [phone],
    );
    const erase = () => quiet.client(ErasureService).eraseVerification({ verificationId: pending.id });
    const holder = await quiet.db.connect();
    await holder.query("BEGIN");
    await holder.query("SELECT FROM live_code WHERE code = 'lost 6000' FOR UPDATE");
    const interrupted = answerOf(erase);
    await untilWaiting(quiet.db, 1);
    await quiet.db.query(
      `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
       WHERE datname = current_database() AND wait_event_type = 'Lock'`,
    );
    expect(await interrupted).toMatchObject({ code: "service_unavailable" });
    await holder.query("COMMIT");
    holder.release();
    expect(await tablesWith(quiet.db, phone)).toEqual(["live_code"]);
    await erase();
    expect(await tablesWith(quiet.db, phone)).toEqual([]);
  });
});
