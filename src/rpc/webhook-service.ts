import { create } from "@bufbuild/protobuf";
import { durationFromMs, timestampFromDate } from "@bufbuild/protobuf/wkt";
import type { ConnectRouter } from "@connectrpc/connect";
import { encodeId } from "../core/ids.ts";
import type { Attempt, Delivery, DeliveryState, EventType, Webhook } from "../core/webhook.ts";
import type { Environment } from "../gen/proto/phoneproof/v1/verification_pb.ts";
import {
  WebhookAttemptSchema,
  WebhookDeliverySchema,
  WebhookDeliveryState,
  WebhookEventType,
  WebhookSchema,
  WebhookService,
} from "../gen/proto/phoneproof/v1/webhook_pb.ts";
import type { AsAdmin } from "./as-admin.ts";
import {
  enumName,
  environmentMessage,
  environmentOf,
  type Found,
  optionalTimestamp,
  requiredEnvironmentOf,
} from "./messages.ts";

const types: Record<EventType, WebhookEventType> = {
  "verification.verified": WebhookEventType.VERIFICATION_VERIFIED,
  "verification.expired": WebhookEventType.VERIFICATION_EXPIRED,
  "verification.cancelled": WebhookEventType.VERIFICATION_CANCELLED,
};
const states: Record<DeliveryState, WebhookDeliveryState> = {
  pending: WebhookDeliveryState.PENDING,
  delivered: WebhookDeliveryState.DELIVERED,
  failed: WebhookDeliveryState.FAILED,
  disabled: WebhookDeliveryState.DISABLED,
};

/** Serves what an admin token may do with webhooks. */
export function webhookRoutes(router: ConnectRouter, asAdmin: AsAdmin): void {
  router.service(WebhookService, {
    setWebhook: asAdmin(async ({ webhooks }, request) => {
      const found: Found = { violations: [] };
      const events = request.events.flatMap((type) => enumName("events", types, type, found) ?? []);
      const { webhook, secret } = await webhooks.set(
        { ...referenceOf(request), url: request.url, events },
        found.violations,
      );
      return { webhook: webhookMessage(webhook), secret };
    }),
    getWebhook: asAdmin(async ({ webhooks }, request) => ({
      webhook: webhookMessage(
        await webhooks.get({
          projectId: request.projectId,
          environment: environmentOf(request.environment),
          webhookId: request.webhookId,
        }),
      ),
    })),
    rotateWebhookSecret: asAdmin(async ({ webhooks }, request) => {
      const { webhook, secret } = await webhooks.rotateSecret(referenceOf(request));
      return { webhook: webhookMessage(webhook), secret };
    }),
    removeWebhook: asAdmin(async ({ webhooks }, request) => ({
      webhook: webhookMessage(await webhooks.remove(referenceOf(request))),
    })),
    disableWebhook: asAdmin(async ({ webhooks }, request) => ({
      webhook: webhookMessage(await webhooks.disable({ ...referenceOf(request), url: request.url })),
    })),
    listWebhookDeliveries: asAdmin(async ({ webhooks }, request) => {
      const { projectId, verificationId, pageSize, pageToken } = request;
      const found: Found = { violations: [] };
      const environment = environmentOf(request.environment, found);
      const wanted = request.states.flatMap((state) => enumName("states", states, state, found) ?? []);
      const page = await webhooks.deliveries(
        { projectId, environment, verificationId, states: wanted, pageSize, pageToken },
        found.violations,
      );
      return { deliveries: page.deliveries.map(deliveryMessage), nextPageToken: page.nextPageToken };
    }),
    resendWebhookEvent: asAdmin(async ({ webhooks }, { eventId }) => ({
      delivery: deliveryMessage(await webhooks.resend(eventId)),
    })),
    sendTestWebhook: asAdmin(async ({ webhooks }, request) => {
      const found: Found = { violations: [] };
      const asked =
        request.type === WebhookEventType.UNSPECIFIED ? null : enumName("type", types, request.type, found);
      const { webhook, eventId, type, attempt } = await webhooks.test(
        { ...referenceOf(request), type: asked },
        found.violations,
      );
      return {
        webhook: webhookMessage(webhook),
        eventId,
        type: types[type],
        attempt: attemptMessage(attempt),
      };
    }),
  });
}

function referenceOf(request: { readonly projectId: string; readonly environment: Environment }) {
  return { projectId: request.projectId, environment: requiredEnvironmentOf(request.environment) };
}

function webhookMessage(webhook: Webhook) {
  return create(WebhookSchema, {
    id: encodeId("whk_", webhook.id),
    projectId: encodeId("prj_", webhook.projectId),
    environment: environmentMessage(webhook.environment),
    url: webhook.url,
    events: webhook.events.map((type) => types[type]),
    createdAt: timestampFromDate(webhook.createdAt),
    replacedAt: optionalTimestamp(webhook.replacedAt),
    disabledAt: optionalTimestamp(webhook.disabledAt),
    disabledReason: webhook.disabledReason ?? "",
    failingSince: optionalTimestamp(webhook.failingSince),
  });
}

function deliveryMessage(delivery: Delivery) {
  return create(WebhookDeliverySchema, {
    eventId: encodeId("evt_", delivery.verificationId),
    verificationId: encodeId("vrf_", delivery.verificationId),
    webhookId: encodeId("whk_", delivery.webhookId),
    type: types[delivery.type],
    occurredAt: timestampFromDate(delivery.occurredAt),
    url: delivery.url,
    state: states[delivery.state],
    nextAttemptAt: optionalTimestamp(delivery.nextAttemptAt),
    attempts: delivery.attempts.map(attemptMessage),
    resends: delivery.resends,
  });
}

function attemptMessage({ number, startedAt, durationMs, status, error, answer }: Attempt) {
  return create(WebhookAttemptSchema, {
    number,
    startedAt: timestampFromDate(startedAt),
    duration: durationMs === null ? undefined : durationFromMs(durationMs),
    status: status ?? 0,
    error: error ?? "",
    answer: answer ?? "",
  });
}
