import { setTimeout as delay } from "node:timers/promises";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { describe, expect, test } from "vitest";
import { ErasureService } from "../../src/gen/proto/phoneproof/v1/erasure_pb.ts";
import {
  InboundMessageOutcome,
  InboundMessageOutcomeSchema,
} from "../../src/gen/proto/phoneproof/v1/inbound_message_pb.ts";
import {
  PendingReason,
  type VerificationHistory,
  VerificationHistoryService,
} from "../../src/gen/proto/phoneproof/v1/verification_history_pb.ts";
import { Carrier } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { merchant } from "../gateway/merchant.ts";
import { startCuttableProxy } from "../harness/cuttable-proxy.ts";
import { startTestService } from "../harness/service.ts";
import { shortenTimers } from "../harness/timers.ts";
import { answerOf } from "../rpc/grpc-answer.ts";
import { untilWaiting } from "./barrier.ts";
import { createPending, letExpire, type Pending } from "./pending.ts";
import { newPhone, smsSource } from "./sms-source.ts";

const service = await startTestService();
const histories = service.client(VerificationHistoryService);
const { send, sendAll } = smsSource(
  service,
  await service.createToken({ scope: "ingest", source: "gateway" }),
);

/** A shop with a number of its own, on which no other test's messages arrive. */
async function openShop() {
  const { liveKey } = await service.createProject();
  return merchant(service.httpUrl, liveKey);
}

async function historyOf({ id: verificationId }: Pick<Pending, "id">): Promise<VerificationHistory> {
  const { history } = await histories.getVerificationHistory({ verificationId });
  if (history === undefined) throw new Error("the answer has no history");
  return history;
}

/** What support compares: who, and what became of it. */
const seen = (messages: VerificationHistory["messages"]) =>
  messages.map(
    ({ maskedSender, outcome }) => `${maskedSender} ${InboundMessageOutcomeSchema.value[outcome]?.localName}`,
  );

const masked = (phone: string) => `010-****-${phone.slice(7)}`;

test("a pending verification's history says where to send, who is expected and why it waits", async () => {
  const [expected, other] = [newPhone(), newPhone()];
  const pending = await createPending(await openShop(), { mode: "match", expected_phone: expected });
  const receivedAt = new Date("2026-11-20T06:40:00.123Z");
  await send({ ...pending, from: other, carrier: "KT", messageId: "history-1", receivedAt });
  const history = await historyOf(pending);
  expect(history).toMatchObject({
    destination: pending.to,
    maskedExpectedPhone: masked(expected),
    webhookId: "",
    pendingReason: PendingReason.ANOTHER_NUMBER,
    messages: [
      {
        source: "gateway",
        messageId: "history-1",
        maskedSender: masked(other),
        carrier: Carrier.KT,
        receivedAt: timestampFromDate(receivedAt),
        outcome: InboundMessageOutcome.SENDER_MISMATCH,
        duplicate: false,
      },
    ],
    unmatchedMessages: [],
  });
  expect(history.endedAt).toBeUndefined();
  expect(history.pendingReasonAt).toEqual(history.messages[0]?.ingestedAt);
});

test("every message that named it is there, in order, repeated ones under their own ids", async () => {
  const [first, second] = [newPhone(), newPhone()];
  const pending = await createPending(await openShop());
  await send({ ...pending, from: first });
  await send({ ...pending, from: first });
  await send({ ...pending, from: second });
  const history = await historyOf(pending);
  expect(seen(history.messages)).toEqual([
    `${masked(first)} VERIFIED`,
    `${masked(first)} VERIFIED`,
    `${masked(second)} NOT_PENDING`,
  ]);
  expect(history.messages.map(({ duplicate }) => duplicate)).toEqual([false, true, false]);
  expect(history.endedAt).toEqual(history.messages[0]?.ingestedAt);
});

test("of two messages of one batch the one that verified is first", async () => {
  const pending = await createPending(await openShop());
  const [first, second] = [newPhone(), newPhone()];
  await sendAll([
    // It is stored alone, and those that arrive meanwhile form the next batch.
    { to: "0212345678", text: "first" },
    { ...pending, from: first, messageId: "history-z" },
    { ...pending, from: second, messageId: "history-a" },
  ]);
  expect(seen((await historyOf(pending)).messages)).toEqual([
    `${masked(first)} VERIFIED`,
    `${masked(second)} NOT_PENDING`,
  ]);
});

test("a late message is there, with the time at which the verification was found expired", async () => {
  const phone = newPhone();
  const pending = await createPending(await openShop());
  await letExpire(service.db, pending.id);
  await send({ ...pending, from: phone });
  const history = await historyOf(pending);
  expect(seen(history.messages)).toEqual([`${masked(phone)} LATE`]);
  expect(history.endedAt).toBeDefined();
});

test("a verification that ends while its history is read is not shown as pending with the message that verified it", async () => {
  const proxy = await startCuttableProxy(service.databaseUrl);
  const other = await service.startAnother({ DATABASE_URL: proxy.patientUrl });
  const pending = await createPending(await openShop());
  const held = proxy.holdAnswerTo('FROM "public"."event"');
  const reading = other
    .client(VerificationHistoryService)
    .getVerificationHistory({ verificationId: pending.id });
  await held;
  await send({ ...pending, from: newPhone() });
  proxy.restore();
  const { history } = await reading;
  expect(history?.endedAt).toBeUndefined();
  expect(history?.messages).toEqual([]);
});

test("many histories at once leave connections for creations", async () => {
  const shop = await openShop();
  const { id: verificationId } = await createPending(shop);
  const holder = await service.db.connect();
  try {
    await holder.query("BEGIN; LOCK TABLE pending_hint IN ACCESS EXCLUSIVE MODE");
    const reading = Promise.allSettled(
      Array.from({ length: 90 }, () => histories.getVerificationHistory({ verificationId })),
    );
    await untilWaiting(service.db, 1);
    expect((await shop.create()).status).toBe(201);
    await holder.query("ROLLBACK");
    await reading;
  } finally {
    holder.release(true);
  }
});

test("a history may take longer than the five seconds of other transactions", async () => {
  // Without jobs, which would use its connections.
  const other = await service.startAnother({ ROLES: "api" });
  const { id: verificationId } = await createPending(await openShop());
  const { getVerificationHistory } = other.client(VerificationHistoryService);
  await getVerificationHistory({ verificationId });
  const holder = await service.db.connect();
  try {
    await holder.query("BEGIN; LOCK TABLE inbound_message IN ACCESS EXCLUSIVE MODE");
    shortenTimers(5_000, 500);
    const reading = answerOf((options) => getVerificationHistory({ verificationId }, options));
    await untilWaiting(service.db, 1);
    // Then they would be over.
    await delay(1_000);
    await holder.query("ROLLBACK");
    expect((await reading).code).toBe("ok");
  } finally {
    holder.release(true);
  }
});

describe("unmatched messages", () => {
  test("are those on its destination from its creation to its end", async () => {
    const shop = await openShop();
    const phones = [newPhone(), newPhone(), newPhone()] as const;
    const { to } = await createPending(shop);
    const text = "안녕하세요";
    await send({ to, from: phones[0], text });
    const pending = await createPending(shop);
    await send({ to, from: phones[1], text });
    await shop.cancel(pending.id);
    await send({ to, from: phones[2], text });
    expect(seen((await historyOf(pending)).unmatchedMessages)).toEqual([`${masked(phones[1])} NO_MATCH`]);
  });

  test("do not include those on other numbers", async () => {
    const pending = await createPending(await openShop());
    const neighbour = await createPending(await openShop());
    await send({ to: neighbour.to, from: newPhone(), text: "안녕하세요" });
    expect((await historyOf(pending)).unmatchedMessages).toEqual([]);
  });

  test("are no longer found once their sender is erased", async () => {
    const phone = newPhone();
    const pending = await createPending(await openShop());
    await send({ to: pending.to, from: phone, text: "안녕하세요" });
    await Array.fromAsync(service.client(ErasureService).erasePhone({ phone }));
    expect((await historyOf(pending)).unmatchedMessages).toEqual([]);
  });

  test("are the latest hundred", async () => {
    const shop = await openShop();
    const pending = await createPending(shop);
    const phones = Array.from({ length: 101 }, newPhone);
    for (const from of phones) await send({ to: pending.to, from, text: "안녕하세요" });
    expect(seen((await historyOf(pending)).unmatchedMessages)).toEqual(
      phones.slice(1).map((phone) => `${masked(phone)} NO_MATCH`),
    );
  });
});

test("a history holds no complete number and no text", async () => {
  const [expected, other] = [newPhone(), newPhone()];
  const pending = await createPending(await openShop(), { mode: "match", expected_phone: expected });
  await send({ ...pending, from: other });
  await send({ to: pending.to, from: expected, text: `mein Text ${other}` });
  const text = JSON.stringify(await historyOf(pending), (_, value) =>
    typeof value === "bigint" ? String(value) : value,
  );
  expect(text).toContain("****");
  for (const personal of [expected, other, pending.code, "mein Text"]) expect(text).not.toContain(personal);
});

test("after an erasure a message stays, without its sender", async () => {
  const phone = newPhone();
  const pending = await createPending(await openShop());
  await send({ ...pending, from: phone });
  await service.client(ErasureService).eraseVerification({ verificationId: pending.id });
  expect(seen((await historyOf(pending)).messages)).toEqual([" VERIFIED"]);
});

test.for([
  { name: "of no verification", verificationId: "vrf_01kaex4mpyf2xbtyt1s6vdr4e9" },
  { name: "that is none", verificationId: "vrf_x" },
])("an id $name is refused with verification_not_found", async ({ verificationId }) => {
  expect(
    await answerOf((options) => histories.getVerificationHistory({ verificationId }, options)),
  ).toMatchObject({
    code: "verification_not_found",
  });
});
