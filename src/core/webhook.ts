/** A merchant's webhook, the events it gets, and what delivering them takes. */

import { randomBytes } from "node:crypto";
import type { Environment } from "./project.ts";
import type { Verification } from "./verification.ts";

export const eventTypes = [
  "verification.verified",
  "verification.expired",
  "verification.cancelled",
] as const;

export type EventType = (typeof eventTypes)[number];

/** One version of where a project's events go. Ids are UUIDs. */
export interface Webhook {
  readonly id: string;
  readonly projectId: string;
  readonly environment: Environment;
  readonly url: string;
  readonly events: readonly EventType[];
  readonly createdAt: Date;
  /** Null: in force. */
  readonly replacedAt: Date | null;
  /** Null: it works. */
  readonly disabledAt: Date | null;
  readonly disabledReason: string | null;
  readonly failingSince: Date | null;
}

export const deliveryStates = ["pending", "delivered", "failed", "disabled"] as const;
export type DeliveryState = (typeof deliveryStates)[number];

/** One try to deliver an event, as it is kept. Without a duration it is under way or was cut off. */
export interface Attempt {
  readonly number: number;
  readonly startedAt: Date;
  readonly durationMs: number | null;
  readonly status: number | null;
  readonly error: string | null;
  readonly answer: string | null;
}

/** What is due again is found by looking, so often. */
export const retryLookMs = 500;

/** The longest exchange and as long again for writing its result. A crash delays what it cut off by no more than this. */
export const leaseSeconds = 30;

/** An event on its way. The verification's id is the event's as well, since it has at most one. */
export interface Delivery {
  readonly verificationId: string;
  readonly webhookId: string;
  readonly type: EventType;
  readonly occurredAt: Date;
  readonly url: string;
  readonly state: DeliveryState;
  readonly resends: number;
  readonly nextAttemptAt: Date | null;
  readonly attempts: readonly Attempt[];
}

/** An event to tell. Times are milliseconds since the epoch by the database's clock. */
export interface WebhookEvent {
  readonly type: EventType;
  readonly occurredAt: number;
  readonly verification: Verification;
}

/** An attempt that is this process's to make, and nobody else's while its lease lasts. */
export interface DueAttempt {
  readonly verificationId: string;
  /** Its number, by which its result is told from an earlier or later one's. */
  readonly number: number;
  /** As often it has been sent again: the other half of what its result must match. */
  readonly resends: number;
  /** Attempts of the schedule that have failed before it. */
  readonly failures: number;
  /** What is fair between endpoints goes by this: a project's URL in an environment, in any version. */
  readonly endpoint: string;
  readonly url: string;
  /** The captured configuration's first, then the newer ones of the endpoint. */
  readonly secrets: readonly Buffer[];
  readonly event: WebhookEvent;
  /** Milliseconds since the epoch by the database's clock. */
  readonly startedAt: number;
}

/** How an attempt ended. */
export interface AttemptResult {
  readonly verificationId: string;
  readonly number: number;
  readonly resends: number;
  readonly durationMs: number;
  readonly status: number | null;
  /** Null exactly where it succeeded. */
  readonly error: string | null;
  readonly answer: string | null;
  /** The endpoint has said that it wants no more. */
  readonly gone: boolean;
  /** Seconds until the next attempt after a failure; null: there is none. */
  readonly retryInSeconds: number | null;
}

/** Rejects only where `signal` aborts: then nothing is known of it, and its lease says when it is made again. */
export type MakeAttempt = (due: DueAttempt, signal: AbortSignal) => Promise<AttemptResult>;

/** How much more of which endpoints may be under way, for a claim of due attempts. */
export interface ClaimBounds {
  /** In all. */
  readonly limit: number;
  /** The most for endpoints that are known to be quick. Beyond it an endpoint with nothing under way still gets one attempt. */
  readonly quickLimit: number;
  /** The same for endpoints that are slow, or not named. */
  readonly slowLimit: number;
  /** The most for slow endpoints, such first attempts included. */
  readonly slowFirstLimit: number;
  /** Of an endpoint that is not named. */
  readonly perEndpoint: number;
  readonly endpoints: readonly {
    readonly endpoint: string;
    readonly room: number;
    readonly slow: boolean;
    /** The fewer, the sooner its turn. One that is not named has none. */
    readonly underWay: number;
  }[];
}

export interface Claim {
  readonly attempts: readonly DueAttempt[];
  /** Deliveries taken out of the queue because their webhook is disabled. */
  readonly heldBack: number;
}

/** How webhook secrets are written: Standard Webhooks' prefix and base64. */
export function secretText(secret: Uint8Array): string {
  return `whsec_${Buffer.from(secret).toString("base64")}`;
}

/** The strength of the HMAC-SHA256 it is for. */
export function newWebhookSecret(): Buffer {
  return randomBytes(32);
}
