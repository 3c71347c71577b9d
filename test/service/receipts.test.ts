import { describe, expect, test } from "vitest";
import { Environment } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { merchant } from "../gateway/merchant.ts";
import { startTestService } from "../harness/service.ts";
import { untilWaiting } from "./barrier.ts";
import { knownProject } from "./known-project.ts";
import { createPending } from "./pending.ts";
import { newPhone, type SmsFields, smsSource } from "./sms-source.ts";

const service = await startTestService({ ROLES: "api" });
const other = await service.startAnother();
const project = await service.createProject();
const shop = merchant(service.httpUrl, project.liveKey);
const shopElsewhere = merchant(other.httpUrl, project.liveKey);
const source = smsSource(service);

const number = project.liveNumber;

describe("a message", () => {
  test.for<[string, Partial<SmsFields>]>([
    ["no message_id", { messageId: "" }],
    ["a message_id of 256 characters", { messageId: "m".repeat(256) }],
    ["a message_id containing NUL", { messageId: "nul-\0" }],
    ["no sender", { from: "" }],
    ["a sender that is no mobile number", { from: "0212345678" }],
    ["a sender containing NUL", { from: "0101234\x005678" }],
    ["no destination", { to: "" }],
    ["a destination that cannot be dialled", { to: "phone" }],
    ["a destination containing NUL", { to: `${number}\0` }],
    ["no text", { text: "" }],
    ["a text of 2,001 characters", { text: "가".repeat(2001) }],
    ["a text containing NUL", { text: "1234\x005678" }],
    ["a carrier containing NUL", { carrier: "SKT\0" }],
    ["a received_at before the year 1", { receivedAt: { seconds: -62_135_596_801n, nanos: 0 } }],
    ["a received_at after the year 9999", { receivedAt: { seconds: 253_402_300_800n, nanos: 0 } }],
    [
      "a received_at with a second or more of nanoseconds",
      { receivedAt: { seconds: 0n, nanos: 1_000_000_000 } },
    ],
    ["a received_at with negative nanoseconds", { receivedAt: { seconds: 1_800_000_000n, nanos: -1 } }],
  ])("with %s is INVALID, and those before and after it in the request are not", async ([, flaw]) => {
    const [before, after] = [await createPending(shop), await createPending(shop)];
    const unsound = { to: number, text: "hello", ...flaw };
    const receipts = await source.sendAll([before, unsound, after]);
    expect(receipts.map(({ outcome, verificationId }) => [outcome, verificationId])).toEqual([
      ["VERIFIED", before.id],
      ["INVALID", ""],
      ["VERIFIED", after.id],
    ]);
    if (flaw.messageId !== undefined) expect(receipts[1]?.messageId).toBe(flaw.messageId);
  });

  test.for<[string, Partial<SmsFields>]>([
    ["a message_id of 255 characters", { messageId: "😀".repeat(255) }],
    ["a text of 2,000 characters", { text: "😀".repeat(2000) }],
    ["a text of one character", { text: "?" }],
    ["a received_at in the year 1", { receivedAt: { seconds: -62_135_596_800n, nanos: 0 } }],
    ["a received_at in the year 9999", { receivedAt: { seconds: 253_402_300_799n, nanos: 999_999_999 } }],
    [
      "quotation marks, backslashes and braces",
      { text: String.raw`{"a",\N} 'NULL' $1`, messageId: String.raw`{"\',NULL` },
    ],
    ["the word null as its id", { messageId: "null" }],
  ])("with %s is accepted", async ([, fields]) => {
    const receipt = await source.send({ to: number, text: "hello", ...fields });
    expect(receipt).toMatchObject({
      outcome: "NO_MATCH",
      ...(fields.messageId && { messageId: fields.messageId }),
    });
  });
});

describe("receipts", () => {
  test("come one per message and in the order of the messages, whatever the outcomes", async () => {
    const made = await Promise.all(Array.from({ length: 60 }, () => createPending(shop)));
    const messages = made.flatMap(({ to, text }, index): SmsFields[] => [
      { messageId: `order-${index}-a`, to, text },
      { messageId: `order-${index}-b`, to, text },
      { messageId: `order-${index}-c`, to, text: `[Web발신] ${text}` },
      { messageId: `order-${index}-d`, to, text: "" },
      { messageId: `order-${index}-a`, to, text },
      { messageId: `order-${index}-e`, to: "0200999997", text },
      { messageId: `order-${index}-f`, to, text: "hello" },
    ]);
    const receipts = await source.sendAll(messages);
    expect(receipts.map(({ messageId }) => messageId)).toEqual(messages.map(({ messageId }) => messageId));
    expect(receipts.map(({ outcome }) => outcome)).toEqual(
      made.flatMap(() => [
        "VERIFIED",
        "NOT_PENDING",
        "WEB_SENT",
        "INVALID",
        "VERIFIED",
        "NO_MATCH",
        "NO_MATCH",
      ]),
    );
    expect(receipts.map(({ verificationId }) => verificationId)).toEqual(
      made.flatMap(({ id }) => [id, id, "", "", id, "", ""]),
    );
  });

  test("report only what every other process shows from that moment on", async () => {
    const made = await Promise.all(Array.from({ length: 50 }, () => createPending(shop)));
    const shown = await Promise.all(
      made.map(async ({ id, to, text }) => {
        const { outcome } = await source.send({ to, text });
        return [outcome, (await shopElsewhere.read(id)).body.status];
      }),
    );
    expect(shown).toEqual(made.map(() => ["VERIFIED", "verified"]));
  });

  test("of verified messages: the event's time is never before verified_at", async () => {
    for (let n = 0; n < 30; n++) {
      const { to, text } = await createPending(shop);
      expect((await source.send({ to, text })).outcome).toBe("VERIFIED");
    }
    const { rows } = await service.db.query(
      "SELECT count(*)::int AS sooner FROM event e JOIN verification v ON v.id = e.verification_id WHERE e.occurred_at < v.verified_at",
    );
    expect(rows).toEqual([{ sooner: 0 }]);
  });

  test("are not sent before the commit", async () => {
    // The transaction that verifies stops in its COMMIT until the test releases it.
    await service.db.query(`
      CREATE FUNCTION wait_at_commit() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN NULL; END';
      CREATE CONSTRAINT TRIGGER wait_at_commit AFTER UPDATE ON verification
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait_at_commit()`);
    const holder = await service.db.connect();
    try {
      await holder.query("SELECT pg_advisory_lock(4711)");
      const { id, to, text } = await createPending(shop);
      let hasReceipt = false;
      const receipt = source.send({ to, text }).finally(() => {
        hasReceipt = true;
      });
      await untilWaiting(service.db, 1);
      // A receipt already sent would have arrived before the answers to these calls.
      for (let call = 0; call < 5; call++) expect((await shop.read(id)).body.status).toBe("pending");
      expect(hasReceipt).toBe(false);
      await holder.query("SELECT pg_advisory_unlock(4711)");
      expect(await receipt).toMatchObject({ outcome: "VERIFIED", verificationId: id });
      expect((await shopElsewhere.read(id)).body.status).toBe("verified");
    } finally {
      holder.release(true);
      await service.db.query("DROP FUNCTION wait_at_commit CASCADE");
    }
  });
});

describe("an ingest token", () => {
  test("limited to an environment gets NO_MATCH on numbers of the other", async () => {
    const token = await service.createToken({
      scope: "ingest",
      source: "only-test",
      environment: Environment.TEST,
    });
    const confined = smsSource(other, token);
    const testShop = merchant(service.httpUrl, project.testKey);
    const [live, trial] = [await createPending(shop), await createPending(testShop)];
    expect(await confined.send(live)).toMatchObject({ outcome: "NO_MATCH", verificationId: "" });
    expect((await shop.read(live.id)).body.status).toBe("pending");
    expect(await confined.send(trial)).toMatchObject({ outcome: "VERIFIED", verificationId: trial.id });
  });

  test("limited to numbers gets NO_MATCH on others", async () => {
    const neighbour = await knownProject([service, other]);
    const token = await service.createToken({
      scope: "ingest",
      source: "only-some",
      numbers: [`+82 ${neighbour.liveNumber.slice(1)}`, neighbour.testNumber],
    });
    const confined = smsSource(other, token);
    const neighbourShop = merchant(service.httpUrl, neighbour.liveKey);
    const [own, others] = [await createPending(neighbourShop), await createPending(shop)];
    expect(await confined.send(others)).toMatchObject({ outcome: "NO_MATCH", verificationId: "" });
    expect((await shop.read(others.id)).body.status).toBe("pending");
    expect(await confined.send(own)).toMatchObject({ outcome: "VERIFIED", verificationId: own.id });
  });

  test("cannot mute a sender where it may not deliver", async () => {
    const token = await service.createToken({
      scope: "ingest",
      source: "only-test-too",
      environment: Environment.TEST,
    });
    const from = newPhone();
    const guesses = Array.from({ length: 6 }, (_, guess) => ({ from, to: number, text: `guess ${guess}` }));
    const outcomes = (await smsSource(other, token).sendAll(guesses)).map(({ outcome }) => outcome);
    expect(outcomes).toEqual(guesses.map(() => "NO_MATCH"));
    const { to, text } = await createPending(shop);
    expect((await source.send({ to, text, from })).outcome).toBe("VERIFIED");
  });
});
