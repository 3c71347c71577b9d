/** Maps the core's values to protobuf and back. */

import { create } from "@bufbuild/protobuf";
import { type Timestamp, TimestampSchema, timestampFromDate } from "@bufbuild/protobuf/wkt";
import type { Carrier as CarrierName } from "../core/carrier.ts";
import { encodeId } from "../core/ids.ts";
import type { InboundOutcome, PendingReason as PendingReasonName } from "../core/inbound-judgement.ts";
import type { Environment as EnvironmentName } from "../core/project.ts";
import type {
  VerificationMode as VerificationModeName,
  VerificationStatus as VerificationStatusName,
  Verification as VerificationValue,
} from "../core/verification.ts";
import type { VerificationWindow as VerificationWindowValue } from "../core/verification-window.ts";
import { Failure, type FieldViolation } from "../failures.ts";
import {
  type VerificationWindow,
  VerificationWindowSchema,
} from "../gen/proto/phoneproof/internal/v1/verification_window_pb.ts";
import { InboundMessageOutcome } from "../gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { PendingReason } from "../gen/proto/phoneproof/v1/verification_history_pb.ts";
import {
  Carrier,
  Environment,
  type Verification,
  VerificationMode,
  VerificationSchema,
  VerificationStatus,
} from "../gen/proto/phoneproof/v1/verification_pb.ts";

const environments: Record<EnvironmentName, Environment> = { live: Environment.LIVE, test: Environment.TEST };
const modes: Record<VerificationModeName, VerificationMode> = {
  discover: VerificationMode.DISCOVER,
  match: VerificationMode.MATCH,
};
const statuses: Record<VerificationStatusName, VerificationStatus> = {
  pending: VerificationStatus.PENDING,
  verified: VerificationStatus.VERIFIED,
  expired: VerificationStatus.EXPIRED,
  cancelled: VerificationStatus.CANCELLED,
};
const carriers: Record<CarrierName, Carrier> = {
  SKT: Carrier.SKT,
  KT: Carrier.KT,
  "LGU+": Carrier.LGU_PLUS,
};
const outcomes: Record<InboundOutcome, InboundMessageOutcome> = {
  verified: InboundMessageOutcome.VERIFIED,
  no_match: InboundMessageOutcome.NO_MATCH,
  sender_mismatch: InboundMessageOutcome.SENDER_MISMATCH,
  late: InboundMessageOutcome.LATE,
  not_pending: InboundMessageOutcome.NOT_PENDING,
  ambiguous: InboundMessageOutcome.AMBIGUOUS,
  web_sent: InboundMessageOutcome.WEB_SENT,
  muted: InboundMessageOutcome.MUTED,
  invalid: InboundMessageOutcome.INVALID,
};

const pendingReasons: Record<PendingReasonName, PendingReason> = {
  another_number: PendingReason.ANOTHER_NUMBER,
  web_sent: PendingReason.WEB_SENT,
  two_codes: PendingReason.TWO_CODES,
  without_code: PendingReason.WITHOUT_CODE,
  muted: PendingReason.MUTED,
};

export const environmentMessage = (environment: EnvironmentName | null) =>
  environment === null ? Environment.UNSPECIFIED : environments[environment];
export const carrierMessage = (carrier: CarrierName | null) =>
  carrier === null ? Carrier.UNSPECIFIED : carriers[carrier];
export const outcomeMessage = (outcome: InboundOutcome) => outcomes[outcome];
export const pendingReasonMessage = (reason: PendingReasonName | null) =>
  reason === null ? PendingReason.UNSPECIFIED : pendingReasons[reason];

/** Violations found while a request is decoded, to be reported with all others of that request. A Call has this shape. */
export interface Found {
  violations: readonly FieldViolation[];
}

/** Null for unspecified. A number that this version does not know is refused, or added to `found` with null as the result. */
export function environmentOf(environment: Environment, found?: Found): EnvironmentName | null {
  if (environment === Environment.UNSPECIFIED) return null;
  return enumName("environment", environments, environment, found);
}

/** For a required environment: null for unspecified and for unknown numbers, which the core refuses. */
export const requiredEnvironmentOf = (environment: Environment): EnvironmentName | null =>
  nameOf(environments, environment) ?? null;

export function modeOf(mode: VerificationMode, found: Found): VerificationModeName {
  if (mode === VerificationMode.UNSPECIFIED) return "discover";
  return enumName("mode", modes, mode, found) ?? "discover";
}

export function statusesOf(numbers: readonly VerificationStatus[], found: Found): VerificationStatusName[] {
  return numbers.flatMap((status) => enumName("statuses", statuses, status, found) ?? []);
}

/**
 * The name of an enumeration's number. Protobuf passes unknown numbers through: such a number is refused, or added to
 * `found` with null as the result.
 */
export function enumName<Name extends string>(
  field: string,
  numbers: Readonly<Record<Name, number>>,
  number: number,
  found?: Found,
): Name | null {
  const name = nameOf(numbers, number);
  if (name !== undefined) return name;
  const violation = { field, message: "is not a value this service knows" };
  if (found === undefined) throw new Failure("validation_failed", { fields: [violation] });
  return addViolation(violation, found);
}

function nameOf<Name extends string>(
  numbers: Readonly<Record<Name, number>>,
  number: number,
): Name | undefined {
  for (const name in numbers) if (numbers[name] === number) return name;
  return undefined;
}

/** Reports a field once, however many of its values are invalid: a list may have tens of thousands. */
function addViolation(violation: FieldViolation, found: Found): null {
  if (!found.violations.some(({ field }) => field === violation.field)) {
    found.violations = [...found.violations, violation];
  }
  return null;
}

export const emptyToNull = <Text extends string | undefined>(text: Text) => (text === "" ? null : text);

/** The project and environment that a request names. */
export function namedScopeOf(
  { projectId, environment }: { readonly projectId: string; readonly environment: Environment },
  found: Found,
) {
  return { projectId: emptyToNull(projectId), environment: environmentOf(environment, found) };
}

/** Absent for null. */
export const optionalTimestamp = (date: Date | null): Timestamp | undefined =>
  date === null ? undefined : timestampFromDate(date);

/** From whole milliseconds since the epoch. */
export function timestamp(milliseconds: number): Timestamp {
  const seconds = Math.floor(milliseconds / 1000);
  const message = create(TimestampSchema);
  message.seconds = BigInt(seconds);
  message.nanos = (milliseconds - seconds * 1000) * 1_000_000;
  return message;
}

/** The range of seconds of google.protobuf.Timestamp. */
const [earliest, latest] = [-62_135_596_800n, 253_402_300_799n];

/**
 * The whole millisecond since the epoch that contains an instant; null if absent, and for an invalid Timestamp, which
 * is added to `found`.
 */
export function millisecondsOf(field: string, timestamp: Timestamp | undefined, found: Found): number | null {
  return wholeMilliseconds(field, timestamp, found, Math.floor);
}

/** The first whole millisecond that is not before an instant: a time in whole milliseconds is before both or before neither. */
export function firstMillisecondOf(
  field: string,
  timestamp: Timestamp | undefined,
  found: Found,
): number | null {
  return wholeMilliseconds(field, timestamp, found, Math.ceil);
}

function wholeMilliseconds(
  field: string,
  timestamp: Timestamp | undefined,
  found: Found,
  whole: (milliseconds: number) => number,
): number | null {
  if (timestamp === undefined) return null;
  const { seconds, nanos } = timestamp;
  if (seconds < earliest || seconds > latest) {
    return addViolation({ field, message: "must be a time in the years 1 to 9999" }, found);
  }
  if (nanos < 0 || nanos > 999_999_999) {
    return addViolation({ field, message: "must have nanos from 0 to 999999999" }, found);
  }
  return Number(seconds) * 1000 + whole(nanos / 1_000_000);
}

export function verificationMessage(verification: VerificationValue): Verification {
  const message = create(VerificationSchema);
  message.id = encodeId("vrf_", verification.id);
  message.projectId = encodeId("prj_", verification.projectId);
  message.status = statuses[verification.status];
  message.environment = environments[verification.environment];
  message.mode = modes[verification.mode];
  if (verification.phone !== null) message.phone = verification.phone;
  if (verification.carrier !== null) message.carrier = carriers[verification.carrier];
  message.clientReference = verification.clientReference;
  message.state = verification.state;
  message.createdAt = timestamp(verification.createdAt);
  message.expiresAt = timestamp(verification.expiresAt);
  if (verification.verifiedAt !== null) message.verifiedAt = timestamp(verification.verifiedAt);
  message.serverTime = timestamp(verification.serverTime);
  return message;
}

export function windowMessage(window: VerificationWindowValue): VerificationWindow {
  const message = create(VerificationWindowSchema);
  message.verificationId = encodeId("vrf_", window.verificationId);
  message.projectId = encodeId("prj_", window.projectId);
  message.projectName = window.projectName;
  message.environment = environments[window.environment];
  message.mode = modes[window.mode];
  message.status = statuses[window.status];
  if (window.maskedPhone !== null) message.maskedPhone = window.maskedPhone;
  if (window.carrier !== null) message.carrier = carriers[window.carrier];
  message.clientReference = window.clientReference;
  message.state = window.state;
  message.destination = window.destination;
  message.smsText = window.smsText;
  if (window.parentOrigin !== null) message.parentOrigin = window.parentOrigin;
  if (window.returnUrl !== null) message.returnUrl = window.returnUrl;
  message.expiresAt = timestamp(window.expiresAt);
  message.serverTime = timestamp(window.serverTime);
  if (window.hint !== null) {
    message.pendingReason = pendingReasons[window.hint.reason];
    message.pendingReasonAt = timestamp(window.hint.noticedAt);
  }
  return message;
}
