import { create } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import type { ConnectRouter } from "@connectrpc/connect";
import type { HistoricMessage, VerificationHistory } from "../core/administration/verification-history.ts";
import { encodeId } from "../core/ids.ts";
import {
  HistoricMessageSchema,
  VerificationHistorySchema,
  VerificationHistoryService,
} from "../gen/proto/phoneproof/v1/verification_history_pb.ts";
import type { AsAdmin } from "./as-admin.ts";
import { carrierMessage, optionalTimestamp, outcomeMessage, pendingReasonMessage } from "./messages.ts";

/** Serves the histories of verifications to admin tokens. */
export function verificationHistoryRoutes(router: ConnectRouter, asAdmin: AsAdmin): void {
  router.service(VerificationHistoryService, {
    getVerificationHistory: asAdmin(async ({ verificationHistories }, { verificationId }) => ({
      history: historyMessage(await verificationHistories.get(verificationId)),
    })),
  });
}

function historyMessage(history: VerificationHistory) {
  const { destination, expectedPhone, endedAt, webhookId, hint, messages, unmatched } = history;
  return create(VerificationHistorySchema, {
    destination,
    maskedExpectedPhone: expectedPhone ?? "",
    endedAt: optionalTimestamp(endedAt),
    webhookId: webhookId === null ? "" : encodeId("whk_", webhookId),
    pendingReason: pendingReasonMessage(hint?.reason ?? null),
    pendingReasonAt: optionalTimestamp(hint?.noticedAt ?? null),
    messages: messages.map(historicMessage),
    unmatchedMessages: unmatched.map(historicMessage),
  });
}

function historicMessage(message: HistoricMessage) {
  return create(HistoricMessageSchema, {
    source: message.source,
    messageId: message.messageId,
    maskedSender: message.sender ?? "",
    carrier: carrierMessage(message.carrier),
    receivedAt: optionalTimestamp(message.receivedAt),
    ingestedAt: timestampFromDate(message.ingestedAt),
    outcome: outcomeMessage(message.outcome),
    duplicate: message.duplicate,
  });
}
