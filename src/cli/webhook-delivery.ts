/** How a delivery of an event, and its attempts, are shown. */

import { type Duration, durationMs } from "@bufbuild/protobuf/wkt";
import type { WebhookAttempt, WebhookDelivery } from "../gen/proto/phoneproof/v1/webhook_pb.ts";
import { fields, localTimeWithZone, shortestText, table } from "./layout.ts";
import { dateOf, deliveryStateWord, eventWord, isoTime } from "./words.ts";

export function deliveryJson(delivery: WebhookDelivery) {
  return {
    event_id: delivery.eventId,
    verification_id: delivery.verificationId,
    webhook_id: delivery.webhookId,
    type: eventWord(delivery.type),
    occurred_at: isoTime(delivery.occurredAt),
    url: delivery.url,
    state: deliveryStateWord(delivery.state),
    next_attempt_at: isoTime(delivery.nextAttemptAt),
    resends: delivery.resends,
    attempts: delivery.attempts.map(attemptJson),
  };
}

export function attemptJson(attempt: WebhookAttempt) {
  return {
    number: attempt.number,
    started_at: isoTime(attempt.startedAt),
    duration_ms: attempt.duration === undefined ? null : Math.round(durationMs(attempt.duration)),
    status: attempt.status || null,
    error: attempt.error || null,
    answer: attempt.status === 0 ? null : attempt.answer,
  };
}

export function deliveryText(delivery: WebhookDelivery): string {
  const { attempts, resends } = delivery;
  const about = fields([
    ["event", delivery.eventId],
    ["type", eventWord(delivery.type)],
    ["verification", delivery.verificationId],
    ["occurred", localTimeWithZone(dateOf(delivery.occurredAt))],
    ["url", delivery.url],
    ["state", deliveryStateWord(delivery.state)],
    ["next attempt", localTimeWithZone(dateOf(delivery.nextAttemptAt))],
    ...(resends === 0 ? [] : [["resends", String(resends)] as const]),
  ]);
  return attempts.length === 0 ? about : `${about}\n${attemptTable(attempts)}`;
}

function attemptTable(attempts: readonly WebhookAttempt[]): string {
  return table(
    [
      { heading: "TRY", value: ({ number }) => String(number), rank: 1 },
      { heading: "STARTED", value: ({ startedAt }) => dateOf(startedAt), rank: 1 },
      { heading: "STATUS", value: ({ status }) => (status === 0 ? "-" : String(status)), rank: 2 },
      { heading: "TOOK", value: ({ duration }) => durationText(duration) ?? "-", rank: 3 },
      { heading: "ERROR", value: errorText, rank: 4, shortens: shortestText },
      { heading: "ANSWER", value: ({ answer }) => answer || "-", rank: 5, shortens: shortestText },
    ],
    attempts,
  );
}

function errorText({ error, duration }: WebhookAttempt): string {
  if (error !== "") return error;
  return duration === undefined ? "in progress" : "-";
}

export function durationText(duration: Duration | undefined): string | null {
  return duration === undefined ? null : `${Math.round(durationMs(duration))} ms`;
}
