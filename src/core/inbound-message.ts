import type { FieldViolation } from "../failures.ts";
import { type Carrier, normaliseCarrier } from "./carrier.ts";
import { normaliseDestination, normaliseMobile, notDestination, notMobile } from "./phone.ts";
import { checkText, isStorable } from "./text-field.ts";

/** The source of messages that administrators send with the command. */
export const adminSource = "cli";
/** The source of messages from the phone that a test window plays. */
export const playedSource = "window";

/** A message as its source sent it. */
export interface InboundMessageFields {
  readonly messageId: string;
  readonly from: string;
  readonly to: string;
  readonly text: string;
  readonly carrier: string;
  /** When the source received it, since the epoch. */
  readonly receivedAt?: { readonly seconds: number; readonly nanos: number } | undefined;
}

export interface NormalisedInboundMessage {
  readonly messageId: string;
  /** National digits, `01012345678`. */
  readonly from: string;
  /** As a handset dials it; whether it is registered is another question. */
  readonly to: string;
  /** As received. */
  readonly text: string;
  /** Null where the source names none or one that is not recognised. */
  readonly carrier: Carrier | null;
  /** In whole milliseconds since the epoch. */
  readonly receivedAtMs: number | null;
}

export type InboundMessageValidation =
  | { readonly ok: true; readonly message: NormalisedInboundMessage }
  /** `messageId` is null where it is itself what cannot be kept. */
  | { readonly ok: false; readonly messageId: string | null };

/** In code points, as all lengths are. A code point has four bytes at most. */
export const inboundLimits = { messageId: 255, from: 64, to: 64, text: 2000, carrier: 64 } as const;

/** What google.protobuf.Timestamp can hold: the years 1 to 9999. */
const earliestSeconds = -62_135_596_800;
const latestSeconds = 253_402_300_799;

/** The message with its numbers and carrier normalised, or the id to answer `INVALID` to. */
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
 * Why a message is `INVALID`, field by field, for who has it and the receipt, which does not say; none where it is valid. Every
 * message is judged, and few are explained: so the judging makes no list.
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
      : { field: "received_at", message: "must be an instant of the years 1 to 9999" },
  ].filter((violation) => violation !== undefined);
}

function isPresent(text: string, limit: number): boolean {
  return text !== "" && isStorable(text, limit);
}

function isTimestamp({ seconds, nanos }: { readonly seconds: number; readonly nanos: number }): boolean {
  return seconds >= earliestSeconds && seconds <= latestSeconds && nanos >= 0 && nanos <= 999_999_999;
}
