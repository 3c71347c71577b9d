/** What erasing a verification removes. */

import { describe, expect, test } from "vitest";
import { ErasureService } from "../../src/gen/proto/phoneproof/v1/erasure_pb.ts";
import { merchant } from "../gateway/merchant.ts";
import { tablesWith } from "../harness/every-table.ts";
import { moveExpiry } from "../harness/expiry.ts";
import { startTestService } from "../harness/service.ts";
import { scrape } from "../ops/scrape.ts";
import { answerOf } from "../rpc/grpc-answer.ts";
import { delivered, deliveryWhen } from "../webhooks/shop.ts";
import {
  addLostCode,
  countsOf,
  eraseVerification,
  everythingAbout,
  expecting,
  nothing,
  prepareShop,
  send,
  service,
  shop,
  tablesWithPhone,
  verifiedBy,
} from "./erasures.ts";
import { createPending, eventsOf, letExpire, type Pending, uuidOf } from "./pending.ts";
import { newPhone } from "./sms-source.ts";

prepareShop();

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

  test.for([
    { place: "name", settings: { name: "Shop 98765432" } },
    { place: "template", settings: { smsTemplate: "{code} 문의 98765432" } },
  ])("keeps messages with what looks like a code in its project's $place, also once its own may be assigned again", async ({
    settings,
  }) => {
    const number = "98765432";
    const { liveKey } = await service.createProject(settings);
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
    // The first batch also has messages of earlier tests, the second has only these.
    await service.db.query(
      `INSERT INTO inbound_message (source, message_id, sender, destination, text, ingested_at, outcome, duplicate)
       SELECT 'elsewhere', n::text, $1, '0200000000', 'hello', now() + n % 2 * interval '1 millisecond', 'no_match', false
       FROM generate_series(1, 10002) n`,
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
