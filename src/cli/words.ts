/** The contract's words for the protobuf enum values. */

import type { DescEnum } from "@bufbuild/protobuf";
import { type Timestamp, timestampDate } from "@bufbuild/protobuf/wkt";
import { InboundMessageOutcomeSchema } from "../gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { CodeFormat, CodeFormatSchema } from "../gen/proto/phoneproof/v1/project_pb.ts";
import { ServiceTokenScope, ServiceTokenScopeSchema } from "../gen/proto/phoneproof/v1/service_token_pb.ts";
import { PendingReason, PendingReasonSchema } from "../gen/proto/phoneproof/v1/verification_history_pb.ts";
import {
  Carrier,
  CarrierSchema,
  Environment,
  EnvironmentSchema,
  VerificationMode,
  VerificationModeSchema,
  VerificationStatus,
  VerificationStatusSchema,
} from "../gen/proto/phoneproof/v1/verification_pb.ts";
import {
  WebhookDeliveryState,
  WebhookDeliveryStateSchema,
  WebhookEventType,
} from "../gen/proto/phoneproof/v1/webhook_pb.ts";

/** The value's name without the enum's prefix; an unknown value of a newer service stays readable. */
function localName(schema: DescEnum, value: number): string {
  return schema.value[value]?.localName ?? `UNKNOWN_${value}`;
}

function wordsOf<Word extends string>(values: Record<Word, number>): readonly Word[] {
  return Object.keys(values) as Word[];
}

export const environmentOf = {
  live: Environment.LIVE,
  test: Environment.TEST,
} as const;
export type EnvironmentWord = keyof typeof environmentOf;
/** The field of a request; none without a word. */
export const environmentField = (word: EnvironmentWord | undefined) =>
  word === undefined ? {} : { environment: environmentOf[word] };
export const environments = wordsOf(environmentOf);

export const codeFormatOf = {
  numeric: CodeFormat.NUMERIC,
  alphanumeric: CodeFormat.ALPHANUMERIC,
} as const;
export type CodeFormatWord = keyof typeof codeFormatOf;
export const codeFormats = wordsOf(codeFormatOf);

export const scopeOf = {
  ingest: ServiceTokenScope.INGEST,
  read: ServiceTokenScope.READ,
  write: ServiceTokenScope.WRITE,
  admin: ServiceTokenScope.ADMIN,
} as const;
export type ScopeWord = keyof typeof scopeOf;
export const scopes = wordsOf(scopeOf);

export const modeOf = {
  discover: VerificationMode.DISCOVER,
  match: VerificationMode.MATCH,
} as const;
export type ModeWord = keyof typeof modeOf;
export const modes = wordsOf(modeOf);

export const statusOf = {
  pending: VerificationStatus.PENDING,
  verified: VerificationStatus.VERIFIED,
  expired: VerificationStatus.EXPIRED,
  cancelled: VerificationStatus.CANCELLED,
} as const;
export type StatusWord = keyof typeof statusOf;
export const statuses = wordsOf(statusOf);

export const eventOf = {
  "verification.verified": WebhookEventType.VERIFICATION_VERIFIED,
  "verification.expired": WebhookEventType.VERIFICATION_EXPIRED,
  "verification.cancelled": WebhookEventType.VERIFICATION_CANCELLED,
} as const;
export type EventWord = keyof typeof eventOf;
export const events = wordsOf(eventOf);

export const deliveryStateOf = {
  pending: WebhookDeliveryState.PENDING,
  delivered: WebhookDeliveryState.DELIVERED,
  failed: WebhookDeliveryState.FAILED,
  disabled: WebhookDeliveryState.DISABLED,
} as const;
export type DeliveryStateWord = keyof typeof deliveryStateOf;
export const deliveryStates = wordsOf(deliveryStateOf);

export function environmentWord(value: Environment): string | null {
  return value === Environment.UNSPECIFIED ? null : localName(EnvironmentSchema, value).toLowerCase();
}

export function codeFormatWord(value: CodeFormat): string {
  return localName(CodeFormatSchema, value).toLowerCase();
}

export function scopeWord(value: ServiceTokenScope): string {
  return localName(ServiceTokenScopeSchema, value).toLowerCase();
}

export function modeWord(value: VerificationMode): string {
  return localName(VerificationModeSchema, value).toLowerCase();
}

export function statusWord(value: VerificationStatus): string {
  return localName(VerificationStatusSchema, value).toLowerCase();
}

export function carrierWord(value: Carrier): string | null {
  if (value === Carrier.UNSPECIFIED) return null;
  return value === Carrier.LGU_PLUS ? "LGU+" : localName(CarrierSchema, value);
}

export function eventWord(value: WebhookEventType): string {
  return events.find((word) => eventOf[word] === value) ?? `UNKNOWN_${value}`;
}

export function deliveryStateWord(value: number): string {
  return localName(WebhookDeliveryStateSchema, value).toLowerCase();
}

/** `VERIFIED`, `NO_MATCH`, … */
export function outcomeWord(value: number): string {
  return localName(InboundMessageOutcomeSchema, value);
}

/** `another_number`, … */
export function pendingReasonWord(value: PendingReason): string | null {
  return value === PendingReason.UNSPECIFIED ? null : localName(PendingReasonSchema, value).toLowerCase();
}

export function dateOf(timestamp: Timestamp | undefined): Date | null {
  return timestamp === undefined ? null : timestampDate(timestamp);
}

/** `2026-11-21T06:41:00.123Z` */
export function isoTime(timestamp: Timestamp | undefined): string | null {
  return dateOf(timestamp)?.toISOString() ?? null;
}
