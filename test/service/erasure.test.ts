/** What erasing a phone removes. */

import { describe, expect, test } from "vitest";
import { AuditService } from "../../src/gen/proto/phoneproof/v1/audit_pb.ts";
import { DestinationNumberService } from "../../src/gen/proto/phoneproof/v1/destination_number_pb.ts";
import { ErasureService } from "../../src/gen/proto/phoneproof/v1/erasure_pb.ts";
import { Environment } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { merchant, newIdempotencyKey } from "../gateway/merchant.ts";
import { tablesWith } from "../harness/every-table.ts";
import { startTestService } from "../harness/service.ts";
import { answerOf } from "../rpc/grpc-answer.ts";
import { answerWith, startReceiver } from "../webhooks/receiver.ts";
import { delivered, deliveriesOf, deliveryWhen, openShop } from "../webhooks/shop.ts";
import { raceTo, untilWaiting } from "./barrier.ts";
import {
  countedAbout,
  countsOf,
  echo,
  erasePhone,
  everythingAbout,
  expecting,
  liveKey,
  nothing,
  prepareShop,
  receiver,
  send,
  service,
  shop,
  spelled,
  tablesWithPhone,
  verifiedBy,
} from "./erasures.ts";
import { createPending, letExpire, uuidOf } from "./pending.ts";
import { newPhone } from "./sms-source.ts";

prepareShop();

/** Printable ASCII as full-width characters. */
const fullWidth = (text: string) =>
  text.replace(/[!-~]/g, (character) => String.fromCharCode(character.charCodeAt(0) + 0xfee0));

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
    ["encoded for a URL, in full width", (...parts: string[]) => fullWidth(parts.join("%2D%2d"))],
    ["encoded for a URL, with small percent signs", (...parts: string[]) => parts.join("\uFE6A2D\uFE6A2d")],
    ["beside a percent sign", (...parts: string[]) => `50%${parts.join("")}`],
    ["digit by digit", (...parts: string[]) => [...parts.join("")].join(" ")],
    ["in full-width digits", (...parts: string[]) => fullWidth(parts.join(""))],
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
