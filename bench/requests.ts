/** The requests of merchants and of an SMS source as bytes, the same for every arm. */

import { randomUUID } from "node:crypto";
import { create, toBinary } from "@bufbuild/protobuf";
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { defaultSmsTemplate, renderSmsText } from "../src/core/sms-text.ts";
import { StreamInboundMessagesRequestSchema } from "../src/gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { type EncodedGroup, framed } from "./stream-load.ts";

export const projectName = "Bench";
export const parentOrigin = "https://shop.example";
export const returnUrl = "https://shop.example/signup/done";

export const creationBodyFor = (expectedPhone: string) =>
  JSON.stringify({
    mode: "match",
    expected_phone: expectedPhone,
    client_reference: "signup-20261121-000042",
    state: "wHk2Rr0cXq7mYt5vZb8nLd3sFg6jKp1a",
    parent_origin: parentOrigin,
    return_url: returnUrl,
  });
export const creationBody = creationBodyFor("010-1234-5678");

/**
 * Requests with one merchant's key. Idempotency keys are random, as merchants' are, so that they hit random places of the
 * index.
 */
export function merchantRequests(apiKey: string) {
  const headers = `Host: api.shop.example\r\nAuthorization: Bearer ${apiKey}\r\nUser-Agent: shop/1.0\r\n`;
  return {
    create: (idempotencyKey: string = randomUUID(), body: string = creationBody) =>
      `POST /v1/verifications HTTP/1.1\r\n${headers}Content-Type: application/json\r\n` +
      `Idempotency-Key: ${idempotencyKey}\r\nContent-Length: ${body.length}\r\n\r\n${body}`,
    read: (verificationId: string) => `GET /v1/verifications/${verificationId} HTTP/1.1\r\n${headers}\r\n`,
    cancel: (verificationId: string) =>
      `POST /v1/verifications/${verificationId}/cancel HTTP/1.1\r\n${headers}Content-Length: 0\r\n\r\n`,
  };
}

export type MerchantRequests = ReturnType<typeof merchantRequests>;

/**
 * The code and sender of the nth seeded verification: distinct for every n and spread over their index like random ones, since
 * each factor is coprime to its modulus.
 */
export const codeLength = 10;
export const codeSpace = 10 ** codeLength;
export const codeFactor = 7_368_787;
export const senderSpace = 10 ** 8;
export const senderFactor = 48_271;

export interface InboundSms {
  readonly messageId: string;
  readonly from: string;
  readonly to: string;
  readonly text: string;
}

/** The SMS that would verify the nth seeded verification. */
export function smsFor(n: number, destination: string): InboundSms {
  const code = String((n * codeFactor) % codeSpace).padStart(codeLength, "0");
  return { messageId: `sms-${n}`, from: senderOf(n), to: destination, text: smsTextOf(code) };
}

export function senderOf(n: number): string {
  return `010${String((n * senderFactor) % senderSpace).padStart(8, "0")}`;
}

export function smsTextOf(code: string): string {
  return renderSmsText(defaultSmsTemplate, projectName, code);
}

export function encodeMessages(messages: readonly InboundSms[], groupSize: number): EncodedGroup[] {
  const schema = StreamInboundMessagesRequestSchema;
  const receivedAt = timestampFromMs(Date.now());
  const groups: EncodedGroup[] = [];
  for (let start = 0; start < messages.length; start += groupSize) {
    const group = messages.slice(start, start + groupSize);
    const request = create(schema, {
      messages: group.map((message) => ({ ...message, carrier: "SKT", receivedAt })),
    });
    groups.push({ frame: framed(toBinary(schema, request)), messages: group.length });
  }
  return groups;
}
