/** What happened to a verification: its messages, and the deliveries of its event. */

import {
  type HistoricMessage,
  PendingReason,
  type VerificationHistory,
  VerificationHistoryService,
} from "../gen/proto/phoneproof/v1/verification_history_pb.ts";
import { type WebhookDelivery, WebhookService } from "../gen/proto/phoneproof/v1/webhook_pb.ts";
import { CliError, requirePart } from "./cli-error.ts";
import type { ServiceClient } from "./client.ts";
import { localTimeWithZone, shortestText, table } from "./layout.ts";
import { deliveryJson, deliveryText } from "./webhook-delivery.ts";
import { carrierWord, dateOf, isoTime, outcomeWord, pendingReasonWord } from "./words.ts";

export interface HistoryWithDeliveries {
  readonly history: VerificationHistory;
  readonly deliveries: readonly WebhookDelivery[];
}

/**
 * Null if the token may only read the verification itself, as a merchant's API key, which is not charged for the refusal; an error
 * if the history cannot be read now, as on a database that is busy, or by a service that is older than this command.
 */
export async function historyOf(
  client: ServiceClient,
  verificationId: string,
): Promise<HistoryWithDeliveries | CliError | null> {
  try {
    const history = await readHistory(client, verificationId);
    const { deliveries } = await client.call(WebhookService.method.listWebhookDeliveries, { verificationId });
    return { history, deliveries };
  } catch (error) {
    if (!(error instanceof CliError)) throw error;
    return error.code === "insufficient_scope" ? null : error;
  }
}

async function readHistory(client: ServiceClient, verificationId: string): Promise<VerificationHistory> {
  try {
    const { getVerificationHistory } = VerificationHistoryService.method;
    const { history } = await client.call(getVerificationHistory, { verificationId });
    return requirePart(history, "a history");
  } catch (error) {
    if (!(error instanceof CliError) || error.code !== "unimplemented") throw error;
    // A service without the call says so to everybody. Whether the token could read a history tells the other call that one takes.
    await client.call(WebhookService.method.listWebhookDeliveries, { verificationId });
    const { requestId } = error;
    throw client.olderService("has no histories of verifications", { requestId, cause: error });
  }
}

export function historyJson({ history, deliveries }: HistoryWithDeliveries) {
  return {
    destination: history.destination,
    masked_expected_phone: history.maskedExpectedPhone || null,
    ended_at: isoTime(history.endedAt),
    pending_reason: pendingReasonWord(history.pendingReason),
    pending_reason_at: isoTime(history.pendingReasonAt),
    messages: history.messages.map(messageJson),
    unmatched_messages: history.unmatchedMessages.map(messageJson),
    webhook_id: history.webhookId || null,
    deliveries: deliveries.map(deliveryJson),
  };
}

function messageJson(message: HistoricMessage) {
  return {
    source: message.source,
    message_id: message.messageId,
    masked_sender: message.maskedSender || null,
    carrier: carrierWord(message.carrier),
    received_at: isoTime(message.receivedAt),
    ingested_at: isoTime(message.ingestedAt),
    outcome: outcomeWord(message.outcome),
    duplicate: message.duplicate,
  };
}

/** How many messages of each kind a history has at most. */
const listed = 100;

/** What the window told the person, in the words of docs/window.md. */
const reasons: Readonly<Record<number, string>> = {
  [PendingReason.ANOTHER_NUMBER]: "a message with its code came from another number than the expected one",
  [PendingReason.WEB_SENT]: "a message with its code was sent from the web",
  [PendingReason.TWO_CODES]: "a message with its code contained another code, too",
  [PendingReason.WITHOUT_CODE]: "a message from the expected number came without the code",
  [PendingReason.MUTED]: "the sender is muted after too many wrong codes",
};

export function historyEntries({ history, deliveries }: HistoryWithDeliveries) {
  const { pendingReason, webhookId } = history;
  const reason =
    pendingReason === PendingReason.UNSPECIFIED
      ? null
      : `${localTimeWithZone(dateOf(history.pendingReasonAt))}: ${reasons[pendingReason] ?? pendingReasonWord(pendingReason)}`;
  return [
    ["ended", localTimeWithZone(dateOf(history.endedAt))],
    ["destination", history.destination],
    ["expected phone", history.maskedExpectedPhone || null],
    ["window said", reason],
    ["webhook", webhookId === "" ? "none was set when it was created" : webhookId],
    ...(webhookId !== "" && history.endedAt !== undefined && deliveries.length === 0
      ? [["event", "not sent, since the webhook does not receive this kind, or no longer stored"] as const]
      : []),
  ] as const;
}

export function historyText({ history, deliveries }: HistoryWithDeliveries): string {
  const { destination, messages, unmatchedMessages } = history;
  return [
    messages.length === 0 ? "No message for it is stored." : `Messages for it:\n${messageTable(messages)}`,
    unmatchedMessages.length === 0
      ? `No unmatched message is stored that came to ${destination} while it was pending.`
      : `${unmatchedMessages.length < listed ? "Unmatched" : `The latest ${listed} unmatched`} messages on ${destination} while it was pending. They may be anybody's: compare the sender.\n${messageTable(unmatchedMessages)}`,
    ...deliveries.map(deliveryText),
  ].join("\n\n");
}

function messageTable(messages: readonly HistoricMessage[]): string {
  return table(
    [
      { heading: "ARRIVED", value: ({ ingestedAt }) => dateOf(ingestedAt), rank: 1 },
      { heading: "SENDER", value: ({ maskedSender }) => maskedSender || "erased", rank: 2 },
      {
        heading: "OUTCOME",
        value: ({ outcome, duplicate }) => `${outcomeWord(outcome)}${duplicate ? " (repeated)" : ""}`,
        rank: 1,
      },
      { heading: "CARRIER", value: ({ carrier }) => carrierWord(carrier) ?? "-", rank: 3 },
      { heading: "SOURCE", value: ({ source }) => source, rank: 4, shortens: shortestText },
      { heading: "AT THE SOURCE", value: ({ receivedAt }) => dateOf(receivedAt), rank: 5 },
      { heading: "MESSAGE ID", value: ({ messageId }) => messageId, rank: 6, shortens: shortestText },
    ],
    messages,
  );
}
