/** The body of a webhook request. */

import { encodeId } from "../core/ids.ts";
import type { Verification } from "../core/verification.ts";
import type { WebhookEvent } from "../core/webhook.ts";

/**
 * The body, the same bytes at every attempt: it is built from the event and from the verification's row in its terminal status,
 * and neither changes (except for the phone, once it is erased). `data` is the contract's VerificationResult as a read at the
 * instant of the event would have returned it.
 */
export function payloadOf({ type, occurredAt, verification }: WebhookEvent): string {
  return JSON.stringify({
    type,
    timestamp: timestamp(occurredAt),
    data: resultOf(verification, occurredAt),
  });
}

function resultOf(verification: Verification, occurredAt: number) {
  return {
    id: encodeId("vrf_", verification.id),
    status: verification.status,
    environment: verification.environment,
    mode: verification.mode,
    phone: verification.phone,
    carrier: verification.carrier,
    client_reference: verification.clientReference,
    state: verification.state,
    created_at: timestamp(verification.createdAt),
    expires_at: timestamp(verification.expiresAt),
    verified_at: verification.verifiedAt === null ? null : timestamp(verification.verifiedAt),
    server_time: timestamp(occurredAt),
  };
}

/** ISO 8601 in UTC: `2026-11-21T06:41:00.123Z` */
const timestamp = (milliseconds: number) => new Date(milliseconds).toISOString();
