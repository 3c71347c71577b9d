import type { FieldViolation } from "../failures.ts";
import { type Carrier, normaliseCarrier } from "./carrier.ts";
import { normaliseDestination, normaliseMobile, notDestination, notMobile } from "./phone.ts";
import { checkText, isStorable } from "./text-field.ts";

/** The source recorded for messages that administrators send with the command. */
export const adminSource = "cli";
/** The source recorded for messages that the simulated phone of a test window sends. */
export const simulatorSource = "window";

/** A message as received from its source, not yet validated. */
export interface InboundMessageFields {
  readonly messageId: string;
  readonly from: string;
  readonly to: string;
  readonly text: string;
  readonly carrier: string;
  /** When the source received the message, since the epoch. */
  readonly receivedAt?: { readonly seconds: number; readonly nanos: number } | undefined;
}

export interface NormalisedInboundMessage {
  readonly messageId: string;
  /** National digits, `01012345678`. */
  readonly from: string;
  /** As a handset dials it; not necessarily a registered number. */
  readonly to: string;
  /** As received. */
  readonly text: string;
  /** Null if the source reports none or one that is not recognised. */
  readonly carrier: Carrier | null;
  /** In whole milliseconds since the epoch. */
  readonly receivedAtMs: number | null;
}

export type InboundMessageValidation =
  | { readonly ok: true; readonly message: NormalisedInboundMessage }
  /** `messageId` is null if the id itself is invalid and cannot be stored. */
  | { readonly ok: false; readonly messageId: string | null };

/** In code points, as all lengths. A code point takes at most four bytes. */
export const inboundLimits = { messageId: 255, from: 64, to: 64, text: 2000, carrier: 64 } as const;

/** The range of google.protobuf.Timestamp: the years 1 to 9999. */
const earliestSeconds = -62_135_596_800;
const latestSeconds = 253_402_300_799;

/**
 * Validates a message and normalises its numbers and carrier; for an invalid message, returns the id to answer `INVALID` to.
 */
export function validateInboundMessage(fields: InboundMessageFields): InboundMessageValidation {
  const messageId = isPresent(fields.messageId, inboundLimits.messageId) ? fields.messageId : null;
  const from = isPresent(fields.from, inboundLimits.from) ? normaliseMobile(fields.from) : null;
  const to = isPresent(fields.to, inboundLimits.to) ? normaliseDestination(fields.to) : null;
  const { receivedAt } = fields;
  const valid =
    messageId !== null &&
    from !== null &&
    to !== null &&
    isPresent(fields.text, inboundLimits.text) &&
    isStorable(fields.carrier, inboundLimits.carrier) &&
    (receivedAt === undefined || isTimestamp(receivedAt));
  if (!valid) return { ok: false, messageId };
  const carrier = normaliseCarrier(fields.carrier);
  const receivedAtMs =
    receivedAt === undefined ? null : receivedAt.seconds * 1000 + Math.floor(receivedAt.nanos / 1_000_000);
  return { ok: true, message: { messageId, from, to, text: fields.text, carrier, receivedAtMs } };
}

/**
 * The violations that make a message `INVALID`, for the client that sent it, since the receipt does not explain; empty if it is
 * valid. Separate from `validateInboundMessage`, which runs for every message and so builds no list.
 */
export function inboundViolations(fields: InboundMessageFields): FieldViolation[] {
  const { messageId, from, to, text, carrier, receivedAt } = fields;
  const mustBe = (field: string, value: string, max: number) =>
    checkText(field, value, { required: true, max });
  return [
    mustBe("message_id", messageId, inboundLimits.messageId),
    mustBe("from", from, inboundLimits.from) ??
      (normaliseMobile(from) === null ? notMobile("from") : undefined),
    mustBe("to", to, inboundLimits.to) ??
      (normaliseDestination(to) === null ? notDestination("to") : undefined),
    mustBe("text", text, inboundLimits.text),
    checkText("carrier", carrier, { max: inboundLimits.carrier }),
    receivedAt === undefined || isTimestamp(receivedAt)
      ? undefined
      : { field: "received_at", message: "must be a time in the years 1 to 9999" },
  ].filter((violation) => violation !== undefined);
}

function isPresent(text: string, limit: number): boolean {
  return text !== "" && isStorable(text, limit);
}

function isTimestamp({ seconds, nanos }: { readonly seconds: number; readonly nanos: number }): boolean {
  return seconds >= earliestSeconds && seconds <= latestSeconds && nanos >= 0 && nanos <= 999_999_999;
}
