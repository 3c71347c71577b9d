/** The sample event that `webhook test` sends. */

import type { SendSample } from "../core/administration/webhooks.ts";
import { newId } from "../core/ids.ts";
import type { Environment } from "../core/project.ts";
import type { Verification, VerificationStatus } from "../core/verification.ts";
import type { EventType } from "../core/webhook.ts";
import type { Endpoints } from "./endpoints.ts";
import { payloadOf } from "./payload.ts";

const statuses: Record<EventType, VerificationStatus> = {
  "verification.verified": "verified",
  "verification.expired": "expired",
  "verification.cancelled": "cancelled",
};

const validityMs = 600_000;
const passedMs = 60_000;

/** Sends a sample like any other event, once, and returns the attempt. */
export function createSendSample(endpoints: Endpoints): SendSample {
  return async ({ webhook, secret, eventId, type, now: startedAt }) => {
    const now = startedAt.getTime();
    const verification = sampleVerification(webhook.projectId, webhook.environment, statuses[type], now);
    const { durationMs, status, error, answer } = await endpoints.send({
      url: webhook.url,
      id: eventId,
      timestamp: Math.floor(now / 1000),
      body: payloadOf({ type, occurredAt: now, verification }),
      secrets: [secret],
    });
    return { number: 1, startedAt, durationMs, status, error, answer };
  };
}

/** A verification that does not exist, with a phone that is not allocated (010-0…). */
function sampleVerification(
  projectId: string,
  environment: Environment,
  status: VerificationStatus,
  now: number,
): Verification {
  const verified = status === "verified";
  const createdAt = now - (status === "expired" ? validityMs : passedMs);
  return {
    id: newId(),
    projectId,
    environment,
    mode: "discover",
    status,
    phone: verified ? "01000001234" : null,
    carrier: verified ? "SKT" : null,
    clientReference: "webhook-test",
    state: "",
    createdAt,
    expiresAt: createdAt + validityMs,
    verifiedAt: verified ? now : null,
    serverTime: now,
  };
}
