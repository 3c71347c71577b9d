import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  type InboundMessageFields,
  inboundViolations,
  validateInboundMessage,
} from "../../src/core/inbound-message.ts";
import { anyCharacter } from "./any-character.ts";

const message: InboundMessageFields = {
  messageId: "m-1",
  from: "+82 10-1234-5678",
  to: "1588-1234",
  text: "본인확인 12345678",
  carrier: "KTF",
  receivedAt: { seconds: 1_795_243_260, nanos: 123_999_999 },
};

describe("an inbound message", () => {
  test("that is valid gets its numbers and carrier normalised, and its text is unchanged", () => {
    expect(validateInboundMessage({ ...message, text: " １２\n" })).toEqual({
      ok: true,
      message: {
        messageId: "m-1",
        from: "01012345678",
        to: "15881234",
        text: " １２\n",
        carrier: "KT",
        receivedAtMs: 1_795_243_260_123,
      },
    });
  });

  test.for([
    ["no carrier", { carrier: "" }, { carrier: null }],
    ["an unknown carrier", { carrier: "unknown" }, { carrier: null }],
    ["a carrier of 64 characters", { carrier: "x".repeat(64) }, { carrier: null }],
    ["no time of receipt", { receivedAt: undefined }, { receivedAtMs: null }],
    ["the time 0", { receivedAt: { seconds: 0, nanos: 0 } }, { receivedAtMs: 0 }],
    [
      "the last instant of the year 9999",
      { receivedAt: { seconds: 253_402_300_799, nanos: 999_999_999 } },
      { receivedAtMs: 253_402_300_799_999 },
    ],
    ["an id of 255 characters", { messageId: "x".repeat(255) }, { messageId: "x".repeat(255) }],
    [
      "an id of 255 characters beyond the BMP",
      { messageId: "😀".repeat(255) },
      { messageId: "😀".repeat(255) },
    ],
    ["a text of 2,000 characters", { text: "가".repeat(2000) }, { text: "가".repeat(2000) }],
    ["a text of 2,000 characters beyond the BMP", { text: "😀".repeat(2000) }, { text: "😀".repeat(2000) }],
    ["a sender of 64 characters", { from: `${" ".repeat(53)}01012345678` }, { from: "01012345678" }],
    ["an unregistered destination", { to: "#1234" }, { to: "#1234" }],
  ] as const)("with %s is valid", ([, changes, normalised]) => {
    expect(validateInboundMessage({ ...message, ...changes })).toMatchObject({
      ok: true,
      message: normalised,
    });
  });

  test.for([
    ["no sender", { from: "" }],
    ["a sender that is no mobile number", { from: "02-123-4567" }],
    ["a sender of 65 characters", { from: `${" ".repeat(54)}01012345678` }],
    ["NUL in its sender", { from: "01012345678\u0000" }],
    ["no destination", { to: "" }],
    ["a destination that cannot be dialled", { to: "shop" }],
    ["a destination of 65 characters", { to: `${" ".repeat(57)}15881234` }],
    ["NUL in its destination", { to: "1588\u00001234" }],
    ["no text", { text: "" }],
    ["a text of 2,001 characters", { text: "a".repeat(2001) }],
    ["a text of 2,001 characters beyond the BMP", { text: "😀".repeat(2001) }],
    ["NUL in its text", { text: "12345678\u0000" }],
    ["a lone surrogate in its text", { text: "12345678 \ud83d" }],
    ["a carrier of 65 characters", { carrier: "x".repeat(65) }],
    ["NUL in its carrier", { carrier: "SKT\u0000" }],
    ["a lone surrogate in its carrier", { carrier: "\udc00" }],
    ["a time that is not a number", { receivedAt: { seconds: Number.NaN, nanos: 0 } }],
    ["an infinite time", { receivedAt: { seconds: Number.POSITIVE_INFINITY, nanos: 0 } }],
    ["a time after the year 9999", { receivedAt: { seconds: 253_402_300_800, nanos: 0 } }],
    ["a time before the year 1", { receivedAt: { seconds: -62_135_596_801, nanos: 0 } }],
    ["a second or more of nanoseconds", { receivedAt: { seconds: 0, nanos: 1_000_000_000 } }],
    ["negative nanoseconds", { receivedAt: { seconds: 0, nanos: -1 } }],
  ] as const)("with %s is invalid, keeps its id, and is refused for that field", ([, changes]) => {
    const refused = { ...message, ...changes };
    expect(validateInboundMessage(refused)).toEqual({ ok: false, messageId: "m-1" });
    const [field = ""] = Object.keys(changes);
    expect(inboundViolations(refused)).toEqual([
      { field: field === "receivedAt" ? "received_at" : field, message: expect.stringMatching(/^must /) },
    ]);
  });

  test.for([
    ["no id", ""],
    ["an id of 256 characters", "x".repeat(256)],
    ["an id of 256 characters beyond the BMP", "😀".repeat(256)],
    ["NUL in its id", "m\u0000"],
    ["a lone surrogate in its id", "\ud83d"],
  ] as const)("with %s is invalid and has no id", ([, messageId]) => {
    expect(validateInboundMessage({ ...message, messageId })).toEqual({ ok: false, messageId: null });
    expect(validateInboundMessage({ ...message, messageId, text: "" })).toEqual({
      ok: false,
      messageId: null,
    });
    const why = inboundViolations({ ...message, messageId, text: "" });
    expect(why.map(({ field }) => field)).toEqual(["message_id", "text"]);
  });

  test("with any content is judged without throwing; valid ones can be stored, and invalid ones have a reason", () => {
    const strings = fc.oneof(
      fc.string({ unit: anyCharacter }),
      fc.string({ unit: fc.constantFrom("\u0000", "\ud800", "0", "1", "+", "8", "2") }),
    );
    const mobiles = fc.oneof(fc.constant("01012345678"), strings);
    fc.assert(
      fc.property(strings, mobiles, mobiles, strings, strings, (messageId, from, to, text, carrier) => {
        const fields = { messageId, from, to, text, carrier };
        const result = validateInboundMessage(fields);
        expect(inboundViolations(fields).length === 0).toBe(result.ok);
        if (!result.ok) return;
        expect(result.message.from).toMatch(/^010\d{8}$/);
        expect(result.message.to).toMatch(/^[\d#]{3,20}$/);
        for (const stored of [result.message.messageId, result.message.text]) {
          expect(stored).not.toBe("");
          expect(stored).not.toContain("\u0000");
          expect(stored.isWellFormed()).toBe(true);
        }
      }),
    );
  });
});
