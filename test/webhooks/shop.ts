/** A merchant's project whose verifications end when a test wants it. */

import { expect, vi } from "vitest";
import { decodeId } from "../../src/core/ids.ts";
import type { ClaimBounds } from "../../src/core/webhook.ts";
import { Environment, VerificationService } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import {
  type WebhookDelivery,
  WebhookDeliveryState,
  type WebhookEventType,
  WebhookService,
} from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { retryWhileUnavailable, type TestService } from "../harness/service.ts";

const environment = Environment.LIVE;

export interface Shop {
  readonly projectId: string;
  readonly liveKey: string;
  /** Sets the webhook of the live environment. */
  setWebhook(url: string, events?: WebhookEventType[]): Promise<{ id: string; secret: string }>;
  rotateSecret(): Promise<string>;
  removeWebhook(): Promise<void>;
  /** Creates a pending verification. */
  create(details?: {
    clientReference?: string;
    state?: string;
  }): Promise<{ id: string; destination: string; smsText: string }>;
  cancel(verificationId: string): Promise<void>;
  /** Creates a verification and cancels it at once, so that there is an event; returns the verification's id. */
  event(): Promise<string>;
}

/** Claims everything that is due, whatever is in progress. */
export const everything: ClaimBounds = {
  limit: 1_000,
  quickLimit: 1_000,
  slowLimit: 1_000,
  slowFirstLimit: 0,
  perEndpoint: 1_000,
  endpoints: [],
};

let keys = 0;

export async function openShop(service: TestService): Promise<Shop> {
  const { projectId, liveKey } = await service.createProject({ rateLimitPerMinute: 1_000_000 });
  const webhooks = service.client(WebhookService);
  const verifications = service.client(VerificationService);
  const shop: Shop = {
    projectId,
    liveKey,
    async setWebhook(url, events = []) {
      const { webhook, secret } = await retryWhileUnavailable(() =>
        webhooks.setWebhook({ projectId, environment, url, events }),
      );
      return { id: webhook?.id ?? "", secret };
    },
    rotateSecret: async () => (await webhooks.rotateWebhookSecret({ projectId, environment })).secret,
    async removeWebhook() {
      await webhooks.removeWebhook({ projectId, environment });
    },
    async create(details = {}) {
      const idempotencyKey = `webhooks-${++keys}`;
      const created = await retryWhileUnavailable(() =>
        verifications.createVerification({ projectId, environment, idempotencyKey, ...details }),
      );
      const { destination, smsText } = created;
      return { id: created.verification?.id ?? "", destination, smsText };
    },
    async cancel(verificationId) {
      await retryWhileUnavailable(() => verifications.cancelVerification({ verificationId }));
    },
    async event() {
      const { id } = await shop.create();
      await shop.cancel(id);
      return id;
    },
  };
  return shop;
}

export async function deliveriesOf(service: TestService, verificationId: string): Promise<WebhookDelivery[]> {
  const webhooks = service.client(WebhookService);
  return (await retryWhileUnavailable(() => webhooks.listWebhookDeliveries({ verificationId }))).deliveries;
}

/** Waits until the verification's delivery satisfies `wanted`, and returns it. */
export async function deliveryWhen(
  service: TestService,
  verificationId: string,
  wanted: (delivery: WebhookDelivery) => boolean,
): Promise<WebhookDelivery> {
  return vi.waitUntil(
    async () => {
      const [delivery] = await deliveriesOf(service, verificationId);
      return delivery && wanted(delivery) ? delivery : undefined;
    },
    { timeout: 45_000, interval: 100 },
  );
}

export const delivered = ({ state }: WebhookDelivery) => state === WebhookDeliveryState.DELIVERED;

export const isDisabled = ({ state }: WebhookDelivery) => state === WebhookDeliveryState.DISABLED;
export const hasFailed = ({ state }: WebhookDelivery) => state === WebhookDeliveryState.FAILED;

/** Whether exactly `count` attempts have been made, and all have a result. */
export const attempted = (count: number) => (delivery: WebhookDelivery) =>
  delivery.attempts.length === count && delivery.attempts.every(({ duration }) => duration !== undefined);

/** Makes the delivery's next attempt due now, also by a clock that has stood still for minutes. */
export async function makeDue(service: TestService, verificationId: string): Promise<void> {
  const { rowCount } = await service.db.query(
    "UPDATE webhook_delivery SET next_attempt_at = now() - interval '1 hour' WHERE verification_id = $1 AND state = 'pending'",
    [decodeId("vrf_", verificationId)],
  );
  expect(rowCount).toBe(1);
}

/** Makes the lease of the attempt in progress end now. */
export async function endLease(service: TestService, verificationId: string): Promise<void> {
  await service.db.query(
    `UPDATE webhook_attempt a
     SET started_at = a.started_at - (d.next_attempt_at - date_trunc('milliseconds', now() - interval '1 hour'))
     FROM webhook_delivery d
     WHERE a.verification_id = $1 AND d.verification_id = $1 AND a.number = d.attempts AND a.duration_ms IS NULL`,
    [decodeId("vrf_", verificationId)],
  );
  await makeDue(service, verificationId);
}

/**
 * CTEs of a statement that adds so many copies of the verification with the UUID $1, newer ones, cancelled and with their events.
 * `made` has their ids, and that of their webhook.
 */
export const cancelledCopies = (count: number) => `
     made AS (
       INSERT INTO verification (id, project_id, environment, mode, status, client_reference, state, destination, sms_text,
         created_at, expires_at, webhook_configuration_id)
       SELECT uuidv7(n * interval '1 millisecond'), v.project_id, v.environment, v.mode, 'cancelled', '', '', v.destination, '',
         v.created_at, v.expires_at, v.webhook_configuration_id
       FROM verification v, generate_series(1, ${count}) n WHERE v.id = $1
       RETURNING id, webhook_configuration_id
     ),
     happened AS (INSERT INTO event SELECT id, 'verification.cancelled', now() FROM made)`;
