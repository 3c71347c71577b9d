/** How the core's values are spelled in protobuf, both ways. */

import { create } from "@bufbuild/protobuf";
import { type Timestamp, TimestampSchema } from "@bufbuild/protobuf/wkt";
import type { Call } from "../core/call.ts";
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
  PendingReason,
  type VerificationWindow,
  VerificationWindowSchema,
} from "../gen/proto/phoneproof/internal/v1/verification_window_pb.ts";
import { InboundMessageOutcome } from "../gen/proto/phoneproof/v1/inbound_message_pb.ts";
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

/** Null for unspecified. Refuses a number that this version does not know. */
export function environmentOf(environment: Environment): EnvironmentName | null {
  if (environment === Environment.UNSPECIFIED) return null;
  return known("environment", environments, environment);
}

/** The same where an environment is required: null for what is none. */
export const requiredEnvironmentOf = (environment: Environment): EnvironmentName | null =>
  nameOf(environments, environment) ?? null;

/** Null for unspecified, and for a number this version does not know, which is added to the violations. */
export function environmentAmong(
  environment: Environment,
  violations: FieldViolation[],
): EnvironmentName | null {
  if (environment === Environment.UNSPECIFIED) return null;
  return knownAmong("environment", environments, environment, violations);
}

/** Where a number is not known, the call is told so with whatever else is wrong with the request. */
export function modeOf(mode: VerificationMode, call: Call): VerificationModeName {
  if (mode === VerificationMode.UNSPECIFIED) return "discover";
  return nameOf(modes, mode) ?? violated(unknownValue("mode"), call, "discover");
}

export function statusesOf(numbers: readonly VerificationStatus[], call: Call): VerificationStatusName[] {
  return numbers.map(
    (status) => nameOf(statuses, status) ?? violated(unknownValue("statuses"), call, "pending"),
  );
}

function violated<Value>(violation: FieldViolation, call: Call, instead: Value): Value {
  if (!call.violations.some(({ field }) => field === violation.field)) {
    call.violations = [...call.violations, violation];
  }
  return instead;
}

const unknownValue = (field: string) => ({ field, message: "is not a value this service knows" });

/** The name of an enumeration's number; protobuf passes numbers it does not know through. */
function nameOf<Name extends string>(
  numbers: Readonly<Record<Name, number>>,
  number: number,
): Name | undefined {
  for (const name in numbers) if (numbers[name] === number) return name;
  return undefined;
}

/** The same; null where it is not known, which is added to the violations. */
export function knownAmong<Name extends string>(
  field: string,
  numbers: Readonly<Record<Name, number>>,
  number: number,
  violations: FieldViolation[],
): Name | null {
  const name = nameOf(numbers, number);
  if (name === undefined) violations.push(unknownValue(field));
  return name ?? null;
}

/** The same where there is nothing else that could be wrong. */
function known<Name extends string>(
  field: string,
  numbers: Readonly<Record<Name, number>>,
  number: number,
): Name {
  const name = nameOf(numbers, number);
  if (name === undefined) throw new Failure("validation_failed", { fields: [unknownValue(field)] });
  return name;
}

const emptyToNull = (text: string) => (text === "" ? null : text);

/**
 * What a request names of project and environment. With a call, that is told of an environment that is not
 * known, with whatever else is wrong; without, there is nothing else that could be.
 */
export function namedScopeOf(
  request: { readonly projectId: string; readonly environment: Environment },
  call?: Call,
) {
  const { projectId, environment } = request;
  const isUnknown =
    call !== undefined &&
    environment !== Environment.UNSPECIFIED &&
    nameOf(environments, environment) === undefined;
  return {
    projectId: emptyToNull(projectId),
    environment: isUnknown ? violated(unknownValue("environment"), call, null) : environmentOf(environment),
  };
}

/** From whole milliseconds since the epoch. */
export function timestamp(milliseconds: number): Timestamp {
  const seconds = Math.floor(milliseconds / 1000);
  const message = create(TimestampSchema);
  message.seconds = BigInt(seconds);
  message.nanos = (milliseconds - seconds * 1000) * 1_000_000;
  return message;
}

/** The seconds that google.protobuf.Timestamp can hold. */
const [earliest, latest] = [-62_135_596_800n, 253_402_300_799n];

/**
 * The whole millisecond since the epoch in which an instant lies; null where absent. The call is told of one that is no
 * Timestamp.
 */
export function millisecondsOf(field: string, timestamp: Timestamp | undefined, call: Call): number | null {
  return wholeMilliseconds(field, timestamp, call, Math.floor);
}

/** The first whole millisecond that is not before an instant: what is of whole milliseconds lies before both or before neither. */
export function firstMillisecondOf(
  field: string,
  timestamp: Timestamp | undefined,
  call: Call,
): number | null {
  return wholeMilliseconds(field, timestamp, call, Math.ceil);
}

function wholeMilliseconds(
  field: string,
  timestamp: Timestamp | undefined,
  call: Call,
  whole: (milliseconds: number) => number,
): number | null {
  if (timestamp === undefined) return null;
  const { seconds, nanos } = timestamp;
  if (seconds < earliest || seconds > latest) {
    return violated({ field, message: "must be an instant of the years 1 to 9999" }, call, null);
  }
  if (nanos < 0 || nanos > 999_999_999) {
    return violated({ field, message: "must have nanos from 0 to 999999999" }, call, null);
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
