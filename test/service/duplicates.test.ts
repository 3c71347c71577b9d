import { describe, expect, test } from "vitest";
import { ErasureService } from "../../src/gen/proto/phoneproof/v1/erasure_pb.ts";
import { Environment } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { merchant } from "../gateway/merchant.ts";
import { moveClock, stopClock } from "../harness/clock.ts";
import { raceTo } from "./barrier.ts";
import { startClockedPair } from "./clocked-pair.ts";
import { createPending, eventsOf, letExpire } from "./pending.ts";
import { newPhone, type SmsFields, smsSource } from "./sms-source.ts";

const { service, here, there } = await startClockedPair();
const project = await here.createProject();
const shop = merchant(here.httpUrl, project.liveKey);
const sourceHere = smsSource(here);
const sourceThere = smsSource(there);

const start = new Date("2031-05-01T00:00:00.000Z");

/** A message that verifies, from a fixed sender. */
async function newMessage(): Promise<SmsFields & { readonly verificationId: string; readonly from: string }> {
  const { id, to, text } = await createPending(shop);
  return { to, text, from: newPhone(), verificationId: id };
}

/** Sends a message to both processes at the same time. */
async function expectOneEffect(message: Awaited<ReturnType<typeof newMessage>>): Promise<void> {
  const receipts = await raceTo(service.db, "inbound_message", [
    () => sourceHere.send(message),
    () => sourceThere.send(message),
  ]);
  const { verificationId } = message;
  for (const receipt of receipts) expect(receipt).toMatchObject({ outcome: "VERIFIED", verificationId });
  expect(receipts.filter(({ duplicate }) => duplicate)).toHaveLength(1);
}

describe("a message with an id that its source has sent before", () => {
  test("gets the first receipt again on any process, and has no effect", async () => {
    const message = { ...(await newMessage()), messageId: "repeated-1" };
    const first = await sourceHere.send(message);
    expect(first).toEqual({
      messageId: "repeated-1",
      outcome: "VERIFIED",
      verificationId: message.verificationId,
      duplicate: false,
    });
    const before = (await shop.read(message.verificationId)).body;
    for (const source of [sourceHere, sourceThere]) {
      expect(await source.send(message)).toEqual({ ...first, duplicate: true });
    }
    expect((await shop.read(message.verificationId)).body).toEqual({
      ...before,
      server_time: expect.any(String),
    });
    expect(await eventsOf(service.db, message.verificationId)).toEqual(["verification.verified"]);
  });

  test("is a repeat even if its other fields differ", async () => {
    const message = { ...(await newMessage()), messageId: "repeated-2" };
    const first = await sourceHere.send({ ...message, text: "hello" });
    expect(first.outcome).toBe("NO_MATCH");
    expect(await sourceThere.send(message)).toEqual({ ...first, duplicate: true });
    const elsewhere = { ...message, to: project.testNumber };
    expect(await sourceThere.send(elsewhere)).toEqual({ ...first, duplicate: true });
    expect((await shop.read(message.verificationId)).body.status).toBe("pending");
  });

  test("is a repeat for as long as its record is kept, even if the verification has changed since", async () => {
    await stopClock(service.db, start);
    const { id, to, text } = await createPending(shop, { mode: "match", expected_phone: "01012348100" });
    const message = { messageId: "repeated-3", to, text, from: newPhone() };
    const first = await sourceHere.send(message);
    expect(first.outcome).toBe("SENDER_MISMATCH");
    await shop.cancel(id);
    await moveClock(service.db, 20 * 86_400_000);
    expect(await sourceThere.send(message)).toEqual({ ...first, duplicate: true });
  });

  test("is a repeat even if the first one was INVALID", async () => {
    const message = { messageId: "repeated-4", to: project.liveNumber, text: "", from: newPhone() };
    const first = await sourceHere.send(message);
    expect(first).toMatchObject({ outcome: "INVALID", duplicate: false });
    expect(await sourceThere.send(message)).toEqual({ ...first, duplicate: true });
  });

  test("is a repeat from a token bound to a number, too, even if it was INVALID or has been erased", async () => {
    const token = await here.createToken({ scope: "ingest", source: "bound", numbers: [project.liveNumber] });
    const bound = smsSource(here, token);
    const { verificationId, ...sound } = await newMessage();
    const messages = [
      { messageId: "bound-1", to: project.liveNumber, text: "", from: newPhone() },
      { ...sound, messageId: "bound-2" },
    ];
    const first = await bound.sendAll(messages);
    expect(first).toMatchObject([{ outcome: "INVALID" }, { outcome: "VERIFIED", verificationId }]);
    await Array.fromAsync(here.client(ErasureService).erasePhone({ phone: sound.from }));
    expect(await bound.sendAll(messages)).toEqual(first.map((receipt) => ({ ...receipt, duplicate: true })));
  });

  test("is a repeat within one request", async () => {
    const message = { ...(await newMessage()), messageId: "repeated-5" };
    const receipts = await sourceHere.sendAll([message, message]);
    expect(receipts.map(({ outcome, duplicate }) => [outcome, duplicate])).toEqual([
      ["VERIFIED", false],
      ["VERIFIED", true],
    ]);
  });

  test("is a repeat from another token of that source, but not from another source", async () => {
    const [token, sameSource, otherSource] = await Promise.all([
      here.createToken({ scope: "ingest", source: "gateway-a" }),
      here.createToken({ scope: "ingest", source: "gateway-a" }),
      here.createToken({ scope: "ingest", source: "gateway-b" }),
    ]);
    const [message, another] = [await newMessage(), await newMessage()];
    const messageId = "shared-id";
    const first = await smsSource(here, token).send({ ...message, messageId });
    expect(first.outcome).toBe("VERIFIED");
    expect(await smsSource(there, sameSource).send({ ...another, messageId })).toEqual({
      ...first,
      duplicate: true,
    });
    expect(await smsSource(there, otherSource).send({ ...another, messageId })).toEqual({
      messageId,
      outcome: "VERIFIED",
      verificationId: another.verificationId,
      duplicate: false,
    });
  });

  test("is a repeat from another admin token, because all of them have the source cli", async () => {
    const token = await here.createToken({ scope: "admin" });
    const message = { ...(await newMessage()), messageId: "admins" };
    const first = await sourceHere.send(message);
    expect(await smsSource(there, token).send({ ...message, text: "hello" })).toEqual({
      ...first,
      duplicate: true,
    });
    const { rows } = await service.db.query("SELECT source FROM inbound_message WHERE message_id = 'admins'");
    expect(rows).toEqual([{ source: "cli" }]);
  });

  test("is not a repeat if another source sends it, even at the same time", async () => {
    const tokens = ["gateway-e", "gateway-f"].map((source) => here.createToken({ scope: "ingest", source }));
    const sources = (await Promise.all(tokens)).map((token) => smsSource(here, token));
    const messages = await Promise.all(Array.from({ length: 40 }, newMessage));
    const receipts = await Promise.all(
      messages.map((message, index) =>
        sources[index % 2]?.send({ ...message, messageId: `same-${Math.floor(index / 2)}` }),
      ),
    );
    expect(receipts.map((receipt) => [receipt?.verificationId, receipt?.duplicate])).toEqual(
      messages.map(({ verificationId }) => [verificationId, false]),
    );
  });

  test("takes effect once if it reaches two processes at the same time", async () => {
    await expectOneEffect({ ...(await newMessage()), messageId: "race-1" });
  });

  test("takes effect once if it reaches two processes at the same time from different senders", async () => {
    const [one, other] = [await newMessage(), await newMessage()];
    const messageId = "race-2";
    const receipts = await raceTo(service.db, "inbound_message", [
      () => sourceHere.send({ ...one, messageId }),
      () => sourceThere.send({ ...other, messageId }),
    ]);
    const first = receipts.find(({ duplicate }) => !duplicate);
    expect(receipts).toContainEqual({ ...first, duplicate: true });
    const statuses = await Promise.all(
      [one, other].map(async ({ verificationId }) => (await shop.read(verificationId)).body.status),
    );
    expect(statuses.sort()).toEqual(["pending", "verified"]);
  });
});

describe("a message with the destination, sender and text of an earlier one", () => {
  test("is a duplicate with any id, from any source, on any process, however its sender is written", async () => {
    const message = await newMessage();
    const { from, verificationId } = message;
    const token = await here.createToken({ scope: "ingest", source: "gateway-c" });
    const first = await sourceHere.send({ ...message, messageId: "content-1" });
    expect(first).toMatchObject({ outcome: "VERIFIED", duplicate: false });
    const again = { outcome: "VERIFIED", verificationId, duplicate: true };
    const spelled = `+82 ${from.slice(1, 3)}-${from.slice(3, 7)}-${from.slice(7)}`;
    expect(await sourceHere.send({ ...message, messageId: "content-2" })).toEqual({
      messageId: "content-2",
      ...again,
    });
    expect(await sourceThere.send({ ...message, messageId: "content-3", from: spelled })).toEqual({
      messageId: "content-3",
      ...again,
    });
    expect(await smsSource(there, token).send({ ...message, messageId: "content-4" })).toEqual({
      messageId: "content-4",
      ...again,
    });
    expect(await eventsOf(service.db, verificationId)).toEqual(["verification.verified"]);
  });

  test.for([
    ["another sender", { from: "01012348101" }],
    ["another text", { text: "안녕하세요" }],
  ] as const)("is no duplicate with %s", async ([, change]) => {
    const message = await newMessage();
    await sourceHere.send(message);
    expect(await sourceThere.send({ ...message, ...change })).toMatchObject({ duplicate: false });
  });

  test("compares texts as they were sent, with line breaks and all", async () => {
    const { to, text } = await createPending(shop);
    const message = { to, text: `${text}\r\n`, from: newPhone() };
    expect(await sourceHere.send(message)).toMatchObject({ outcome: "VERIFIED", duplicate: false });
    expect(await sourceThere.send(message)).toMatchObject({ outcome: "VERIFIED", duplicate: true });
    expect(await sourceThere.send({ ...message, text })).toMatchObject({
      outcome: "NOT_PENDING",
      duplicate: false,
    });
  });

  test("is no duplicate on another destination", async () => {
    const message = await newMessage();
    await sourceHere.send(message);
    const elsewhere = await sourceThere.send({ ...message, to: project.testNumber });
    expect(elsewhere).toMatchObject({ outcome: "NO_MATCH", duplicate: false });
  });

  test.for([
    { name: "is a duplicate until the last millisecond of a minute", later: 59_999, duplicate: true },
    { name: "is processed again after a minute", later: 60_001, duplicate: false },
  ])("$name, whatever its outcome was", async ({ later, duplicate }) => {
    await stopClock(service.db, start);
    const guess = { to: project.liveNumber, text: "안녕하세요", from: newPhone() };
    expect(await sourceHere.send(guess)).toMatchObject({ outcome: "NO_MATCH", duplicate: false });
    await moveClock(service.db, later);
    expect(await sourceThere.send(guess)).toMatchObject({ outcome: "NO_MATCH", duplicate });
    await moveClock(service.db, -later);
    const { to, text } = await createPending(shop);
    const from = newPhone();
    expect((await sourceHere.send({ to, text, from })).outcome).toBe("VERIFIED");
    await moveClock(service.db, later);
    expect(await sourceThere.send({ to, text, from })).toMatchObject({
      outcome: duplicate ? "VERIFIED" : "NOT_PENDING",
      duplicate,
    });
  });

  test("is no duplicate of one that came while the database's clock was an hour ahead", async () => {
    await stopClock(service.db, start);
    const guess = { to: project.liveNumber, text: "안녕하세요", from: newPhone() };
    await moveClock(service.db, 3_600_000);
    expect(await sourceHere.send(guess)).toMatchObject({ outcome: "NO_MATCH", duplicate: false });
    await moveClock(service.db, -3_600_000);
    expect(await sourceThere.send(guess)).toMatchObject({ outcome: "NO_MATCH", duplicate: false });
    expect(await sourceHere.send(guess)).toMatchObject({ outcome: "NO_MATCH", duplicate: true });

    await moveClock(service.db, 3_600_000);
    const { to, text } = await createPending(shop);
    const verifying = { to, text, from: newPhone() };
    expect(await sourceHere.send(verifying)).toMatchObject({ outcome: "VERIFIED", duplicate: false });
    await moveClock(service.db, -3_600_000);
    expect(await sourceThere.send(verifying)).toMatchObject({ outcome: "NOT_PENDING", duplicate: false });
  });

  test("is still a duplicate after a correction of the database's clock by a second", async () => {
    await stopClock(service.db, start);
    const guess = { to: project.liveNumber, text: "안녕하세요", from: newPhone() };
    const { to, text } = await createPending(shop);
    const verifying = { to, text, from: newPhone() };
    expect(await sourceHere.send(guess)).toMatchObject({ outcome: "NO_MATCH", duplicate: false });
    expect(await sourceHere.send(verifying)).toMatchObject({ outcome: "VERIFIED", duplicate: false });
    await moveClock(service.db, -1_000);
    expect(await sourceThere.send(guess)).toMatchObject({ outcome: "NO_MATCH", duplicate: true });
    expect(await sourceThere.send(verifying)).toMatchObject({ outcome: "VERIFIED", duplicate: true });
  });

  test("does not start another minute", async () => {
    await stopClock(service.db, start);
    const { to, text } = await createPending(shop);
    const from = newPhone();
    const receipts = [await sourceHere.send({ to, text, from })];
    await moveClock(service.db, 50_000);
    receipts.push(await sourceThere.send({ to, text, from }));
    await moveClock(service.db, 20_000);
    receipts.push(await sourceHere.send({ to, text, from }));
    expect(receipts.map(({ outcome, duplicate }) => [outcome, duplicate])).toEqual([
      ["VERIFIED", false],
      ["VERIFIED", true],
      ["NOT_PENDING", false],
    ]);
  });

  test("gets the first outcome, even if it would be judged differently by now", async () => {
    const { id, to, text } = await createPending(shop, { mode: "match", expected_phone: "01012348102" });
    const from = newPhone();
    expect((await sourceHere.send({ to, text, from })).outcome).toBe("SENDER_MISMATCH");
    await letExpire(service.db, id);
    expect(await sourceThere.send({ to, text, from })).toMatchObject({
      outcome: "SENDER_MISMATCH",
      verificationId: id,
      duplicate: true,
    });
  });

  test("gets the first outcome, even if the code that it guessed has been assigned since", async () => {
    const { id, to, code } = await createPending(shop);
    const guess = { to, text: "[인증] 00000007", from: newPhone() };
    expect((await sourceHere.send(guess)).outcome).toBe("NO_MATCH");
    // The sender is forgotten, but the content is known for a minute.
    await Array.fromAsync(here.client(ErasureService).erasePhone({ phone: guess.from }));
    await service.db.query("UPDATE live_code SET code = '00000007' WHERE destination = $1 AND code = $2", [
      to,
      code,
    ]);
    expect(await sourceThere.send(guess)).toMatchObject({ outcome: "NO_MATCH", duplicate: true });
    expect((await shop.read(id)).body.status).toBe("pending");
    expect(await sourceThere.send({ ...guess, text: "00000007" })).toMatchObject({
      outcome: "VERIFIED",
      verificationId: id,
    });
  });

  test("is a duplicate within one batch, too", async () => {
    const guess = { to: project.liveNumber, text: "[인증] 00000000", from: newPhone() };
    const message = await newMessage();
    // The first is sent alone; those that arrive meanwhile form a batch.
    const receipts = await sourceHere.sendAll([guess, message, guess, message]);
    expect(receipts.map(({ outcome, duplicate }) => [outcome, duplicate])).toEqual([
      ["NO_MATCH", false],
      ["VERIFIED", false],
      ["NO_MATCH", true],
      ["VERIFIED", true],
    ]);
  });

  test("takes effect once if it reaches two processes at the same time with two ids", async () => {
    await expectOneEffect(await newMessage());
  });

  test("takes effect once if it reaches two processes at the same time for an unregistered number", async () => {
    const message = { to: "0200999998", text: "hello", from: newPhone() };
    const receipts = await raceTo(service.db, "inbound_message", [
      () => sourceHere.send(message),
      () => sourceThere.send(message),
    ]);
    expect(receipts.map(({ outcome }) => outcome)).toEqual(["NO_MATCH", "NO_MATCH"]);
    expect(receipts.filter(({ duplicate }) => duplicate)).toHaveLength(1);
  });

  test("is no duplicate of one from a token that may not deliver to that number", async () => {
    const confined = await here.createToken({
      scope: "ingest",
      source: "gateway-d",
      environment: Environment.TEST,
    });
    const message = await newMessage();
    expect((await smsSource(here, confined).send(message)).outcome).toBe("NO_MATCH");
    expect(await sourceHere.send(message)).toMatchObject({
      outcome: "VERIFIED",
      verificationId: message.verificationId,
      duplicate: false,
    });
  });
});
