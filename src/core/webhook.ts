/** A merchant's webhook, its events, and the interface to deliver them. */

import { randomBytes } from "node:crypto";
import type { Environment } from "./project.ts";
import type { Verification } from "./verification.ts";

export const eventTypes = [
  "verification.verified",
  "verification.expired",
  "verification.cancelled",
] as const;

export type EventType = (typeof eventTypes)[number];

/** One version of a project's webhook settings. Ids are UUIDs. */
export interface Webhook {
  readonly id: string;
  readonly projectId: string;
  readonly environment: Environment;
  readonly url: string;
  readonly events: readonly EventType[];
  readonly createdAt: Date;
  /** Null: this version is in force. */
  readonly replacedAt: Date | null;
  /** Null: not disabled. */
  readonly disabledAt: Date | null;
  readonly disabledReason: string | null;
  readonly failingSince: Date | null;
}

export const deliveryStates = ["pending", "delivered", "failed", "disabled"] as const;
export type DeliveryState = (typeof deliveryStates)[number];

/** One stored attempt to deliver an event. Without a duration it is in progress or was interrupted. */
export interface Attempt {
  readonly number: number;
  readonly startedAt: Date;
  readonly durationMs: number | null;
  readonly status: number | null;
  readonly error: string | null;
  readonly answer: string | null;
}

/** Polling interval for retries that have become due. */
export const retryPollMs = 500;

/** The longest exchange (15 s) and as much again to record its result. A crash delays an interrupted attempt by no more. */
export const leaseSeconds = 30;

/** The delivery of one event. A verification has at most one event, so its id is also the event's. */
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

/** An event to deliver. Times are milliseconds since the epoch by the database's clock. */
export interface WebhookEvent {
  readonly type: EventType;
  readonly occurredAt: number;
  readonly verification: Verification;
}

/** An attempt that this process has claimed; no other process makes it until its lease ends. */
export interface DueAttempt {
  readonly verificationId: string;
  /** The attempt's number; a result is recorded only for the attempt with its number. */
  readonly number: number;
  /** How often the event had been resent at the claim; a result is recorded only if this is unchanged too. */
  readonly resends: number;
  /** How many attempts of the retry schedule failed before this one. */
  readonly failures: number;
  /** The key for sharing slots fairly between endpoints: a project's URL in an environment, in any version. */
  readonly endpoint: string;
  readonly url: string;
  /** The secret of the version captured at creation first, then those of the endpoint's newer versions. */
  readonly secrets: readonly Buffer[];
  readonly event: WebhookEvent;
  /** Milliseconds since the epoch by the database's clock. */
  readonly startedAt: number;
}

/** The result of an attempt. */
export interface AttemptResult {
  readonly verificationId: string;
  readonly number: number;
  readonly resends: number;
  readonly durationMs: number;
  readonly status: number | null;
  /** Null if and only if the attempt succeeded. */
  readonly error: string | null;
  readonly answer: string | null;
  /** The endpoint answered 410 Gone: it wants no more events. */
  readonly gone: boolean;
  /** Seconds until the next attempt after a failure; null if there is none. */
  readonly retryInSeconds: number | null;
}

/** Rejects only if `signal` aborts: then the outcome is unknown, and the attempt is made again when its lease ends. */
export type MakeAttempt = (due: DueAttempt, signal: AbortSignal) => Promise<AttemptResult>;

/** How many more attempts a claim may take, in total and per endpoint. */
export interface ClaimBounds {
  /** The most in total. */
  readonly limit: number;
  /** The most for quick endpoints. Beyond it, an endpoint with no attempt in progress still gets one. */
  readonly quickLimit: number;
  /** The same for endpoints that are slow or not listed in `endpoints`. */
  readonly slowLimit: number;
  /** The most for slow endpoints including such single attempts. */
  readonly slowFirstLimit: number;
  /** The most for an endpoint that is not listed in `endpoints`. */
  readonly perEndpoint: number;
  readonly endpoints: readonly {
    readonly endpoint: string;
    readonly room: number;
    readonly slow: boolean;
    /** Attempts in progress; the fewer, the sooner the endpoint's turn. An unlisted endpoint counts as having none. */
    readonly underWay: number;
  }[];
}

export interface Claim {
  readonly attempts: readonly DueAttempt[];
  /** Deliveries removed from the queue because their webhook is disabled. */
  readonly heldBack: number;
}

/** The textual form of a webhook secret, as Standard Webhooks defines it: a prefix and base64. */
export function secretText(secret: Uint8Array): string {
  return `whsec_${Buffer.from(secret).toString("base64")}`;
}

/** 256 random bits, to match HMAC-SHA256. */
export function newWebhookSecret(): Buffer {
  return randomBytes(32);
}
