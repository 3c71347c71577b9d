import { create, type MessageInitShape, toBinary } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { expect, test } from "vitest";
import { InboundMessageOutcome } from "../../src/gen/proto/phoneproof/v1/inbound_message_pb.ts";
import {
  GetVerificationHistoryResponseSchema,
  PendingReason,
  PendingReasonSchema,
  type VerificationHistorySchema,
} from "../../src/gen/proto/phoneproof/v1/verification_history_pb.ts";
import {
  Environment,
  GetVerificationResponseSchema,
  VerificationMode,
  VerificationStatus,
} from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import {
  ListWebhookDeliveriesResponseSchema,
  type WebhookDeliverySchema,
} from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { answerOf, run } from "./command.ts";
import { startVersion } from "./grpc-peer.ts";

const ingestedAt = timestampFromDate(new Date("2026-11-21T06:41:00.123Z"));
const showOne = ["verification", "show", "vrf_01kaex4mpyf2xbtyt1s6vdr4e9"];
const shown = toBinary(
  GetVerificationResponseSchema,
  create(GetVerificationResponseSchema, {
    verification: {
      id: "vrf_01kaex4mpyf2xbtyt1s6vdr4e9",
      status: VerificationStatus.PENDING,
      environment: Environment.TEST,
      mode: VerificationMode.DISCOVER,
    },
  }),
);
const read = { "phoneproof.v1.VerificationService/GetVerification": shown };

/** How the command reaches a service whose verification has this history. */
async function withHistory(
  history: MessageInitShape<typeof VerificationHistorySchema>,
  deliveries: MessageInitShape<typeof WebhookDeliverySchema>[] = [],
) {
  const answered = create(GetVerificationHistoryResponseSchema, { history });
  const delivered = create(ListWebhookDeliveriesResponseSchema, { deliveries });
  const { address } = await startVersion({
    ...read,
    "phoneproof.v1.VerificationHistoryService/GetVerificationHistory": toBinary(
      GetVerificationHistoryResponseSchema,
      answered,
    ),
    "phoneproof.v1.WebhookService/ListWebhookDeliveries": toBinary(
      ListWebhookDeliveriesResponseSchema,
      delivered,
    ),
  });
  return { PHONEPROOF_ADDRESS: address, PHONEPROOF_TOKEN: "x" };
}

test("show says of each reason what the window said, and of one that it does not know its name", async () => {
  const said = new Map<PendingReason, string>([
    [PendingReason.ANOTHER_NUMBER, "a message with its code came from another number than the expected one"],
    [PendingReason.WEB_SENT, "a message with its code was sent from the web"],
    [PendingReason.TWO_CODES, "a message with its code contained another code, too"],
    [PendingReason.WITHOUT_CODE, "a message from the expected number came without the code"],
    [PendingReason.MUTED, "the sender is muted after too many wrong codes"],
    [99 as PendingReason, "unknown_99"],
  ]);
  const known = PendingReasonSchema.values.map(({ number }) => number).filter((number) => number !== 0);
  expect([...said.keys()]).toEqual([...known, 99]);
  for (const [pendingReason, words] of said) {
    const { stdout } = await run(showOne, await withHistory({ pendingReason, pendingReasonAt: ingestedAt }));
    expect(stdout).toMatch(new RegExp(`^window said +2026-11-21 15:41:00 \\+09:00: ${words}$`, "m"));
  }
});

test("show has a repeated message of an erased sender as that, and what is unknown as null", async () => {
  const message = {
    source: "gateway-1",
    messageId: "m-1",
    ingestedAt,
    receivedAt: timestampFromDate(new Date("2026-11-20T06:40:00Z")),
    outcome: InboundMessageOutcome.VERIFIED,
    duplicate: true,
  };
  const environment = await withHistory({
    destination: "0207000001",
    endedAt: ingestedAt,
    messages: [message],
  });
  expect((await answerOf(showOne, environment)).history).toEqual({
    destination: "0207000001",
    masked_expected_phone: null,
    ended_at: "2026-11-21T06:41:00.123Z",
    pending_reason: null,
    pending_reason_at: null,
    messages: [
      {
        source: "gateway-1",
        message_id: "m-1",
        masked_sender: null,
        carrier: null,
        received_at: "2026-11-20T06:40:00.000Z",
        ingested_at: "2026-11-21T06:41:00.123Z",
        outcome: "VERIFIED",
        duplicate: true,
      },
    ],
    unmatched_messages: [],
    webhook_id: null,
    deliveries: [],
  });
  const { stdout } = await run(showOne, { ...environment, COLUMNS: "200" });
  expect(stdout).toMatch(/^ended +2026-11-21 15:41:00 \+09:00$/m);
  expect(stdout).toMatch(/^expected phone +-$/m);
  expect(stdout).toMatch(
    /^2026-11-21 15:41:00 {2}erased {2}VERIFIED \(repeated\) {2}- +gateway-1 {2}2026-11-20 15:40:00 {2}m-1$/m,
  );
  expect(stdout).not.toContain("No message for it");
});

test.for([
  { name: "its history was read", callsBefore: 1, sent: 1 },
  { name: "its history was read and has no webhook", callsBefore: 1, sent: 0 },
  { name: "its deliveries were read", callsBefore: 2, sent: 1 },
])("show reads a verification that ends before $name again", async ({ callsBefore, sent }) => {
  let calls = 0;
  const isOver = () => calls++ >= callsBefore;
  const { address } = await startVersion({
    get "phoneproof.v1.VerificationService/GetVerification"() {
      const status = isOver() ? VerificationStatus.VERIFIED : VerificationStatus.PENDING;
      return toBinary(
        GetVerificationResponseSchema,
        create(GetVerificationResponseSchema, { verification: { status } }),
      );
    },
    get "phoneproof.v1.VerificationHistoryService/GetVerificationHistory"() {
      const history = { endedAt: isOver() ? ingestedAt : undefined };
      return toBinary(
        GetVerificationHistoryResponseSchema,
        create(GetVerificationHistoryResponseSchema, { history }),
      );
    },
    get "phoneproof.v1.WebhookService/ListWebhookDeliveries"() {
      const deliveries = Array.from({ length: isOver() ? sent : 0 }, () => ({
        eventId: "evt_01kaex4mpyf2xbtyt1s6vdr4e9",
      }));
      return toBinary(
        ListWebhookDeliveriesResponseSchema,
        create(ListWebhookDeliveriesResponseSchema, { deliveries }),
      );
    },
  });
  const { status, history } = await answerOf(showOne, { PHONEPROOF_ADDRESS: address, PHONEPROOF_TOKEN: "x" });
  expect(status).toBe("verified");
  expect(history.ended_at).toBe("2026-11-21T06:41:00.123Z");
  expect(history.deliveries).toHaveLength(sent);
});

test("show says that a hundred unmatched messages are only the latest", async () => {
  const message = { ingestedAt, outcome: InboundMessageOutcome.NO_MATCH };
  const headingOf = async (count: number) => {
    const unmatchedMessages = Array.from({ length: count }, () => message);
    const { stdout } = await run(
      showOne,
      await withHistory({ destination: "0207000001", unmatchedMessages }),
    );
    return /^.* messages on 0207000001 while it was pending\./m.exec(stdout)?.[0];
  };
  expect(await headingOf(99)).toBe("Unmatched messages on 0207000001 while it was pending.");
  expect(await headingOf(100)).toBe("The latest 100 unmatched messages on 0207000001 while it was pending.");
});

test("show has the event's delivery, and says that there is none only where there should be one", async () => {
  const delivery = { eventId: "evt_01kaex4mpyf2xbtyt1s6vdr4e9", url: "https://shop.example/hook" };
  const webhookId = "whk_01kaex4mpyf2xbtyt1s6vdr4e9";
  const missing = "not sent, since the webhook does not receive this kind, or no longer stored";
  for (const { history, deliveries = [], event } of [
    { history: { webhookId, endedAt: ingestedAt }, deliveries: [delivery], event: delivery.eventId },
    { history: { webhookId, endedAt: ingestedAt }, event: missing },
    { history: { webhookId }, event: undefined },
    { history: { endedAt: ingestedAt }, event: undefined },
  ]) {
    const { stdout } = await run(showOne, await withHistory(history, deliveries));
    const events = [...stdout.matchAll(/^event +(.+)$/gm)].map(([, shown]) => shown);
    expect(stdout).toMatch(/^No message for it is stored\.$/m);
    expect(events).toEqual(event === undefined ? [] : [event]);
    expect(stdout.includes(delivery.url)).toBe(deliveries.length > 0);
  }
});
