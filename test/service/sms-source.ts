/** An SMS source that can send whatever protobuf allows. */
import { create } from "@bufbuild/protobuf";
import { TimestampSchema, timestampFromDate } from "@bufbuild/protobuf/wkt";
import {
  type InboundMessage,
  InboundMessageOutcomeSchema,
  type InboundMessageReceipt,
  InboundMessageSchema,
  InboundMessageService,
} from "../../src/gen/proto/phoneproof/v1/inbound_message_pb.ts";
import type { Receipt, TestService } from "../harness/service.ts";

/** Omitted fields get valid defaults: a unique id and sender, no carrier. */
export interface SmsFields {
  readonly messageId?: string;
  readonly from?: string;
  readonly to: string;
  readonly text: string;
  readonly carrier?: string;
  readonly receivedAt?: Date | { readonly seconds: bigint; readonly nanos: number };
}

export interface SmsSource {
  /** Sends the messages in as few requests of one stream as possible; the receipts are in the same order. */
  sendAll(messages: readonly SmsFields[]): Promise<Receipt[]>;
  send(message: SmsFields): Promise<Receipt>;
}

let phonesMade = 0;
let messagesMade = 0;

/** A phone number that no other test uses, as national digits. */
export function newPhone(): string {
  phonesMade += 1;
  return `010${30_000_000 + phonesMade}`;
}

/** Uses the admin token, unless another is given, which then determines the source. */
export function smsSource(service: TestService, token?: string): SmsSource {
  const client = service.client(InboundMessageService, token);

  async function sendAll(messages: readonly SmsFields[]): Promise<Receipt[]> {
    const receipts: Receipt[] = [];
    for await (const response of client.streamInboundMessages(requests(messages.map(inboundMessage)))) {
      receipts.push(...response.receipts.map(receiptOf));
    }
    return receipts;
  }

  return {
    sendAll,
    async send(message) {
      const [receipt, ...more] = await sendAll([message]);
      if (receipt === undefined || more.length > 0) throw new Error("one message has one receipt");
      return receipt;
    },
  };
}

export function inboundMessage({
  messageId,
  from,
  to,
  text,
  carrier,
  receivedAt,
}: SmsFields): InboundMessage {
  messagesMade += 1;
  const message = create(InboundMessageSchema, {
    messageId: messageId ?? `message-${messagesMade}`,
    from: from ?? newPhone(),
    to,
    text,
    carrier: carrier ?? "",
  });
  if (receivedAt instanceof Date) message.receivedAt = timestampFromDate(receivedAt);
  else if (receivedAt) message.receivedAt = create(TimestampSchema, receivedAt);
  return message;
}

/** The receipt, with the outcome's name as the commands print it. */
export function receiptOf(receipt: InboundMessageReceipt): Receipt {
  const { messageId, outcome, verificationId, duplicate } = receipt;
  const name = InboundMessageOutcomeSchema.value[outcome]?.localName ?? String(outcome);
  return { messageId, outcome: name, verificationId, duplicate };
}

const mostInRequest = 1_000;

export async function* requests(
  messages: readonly InboundMessage[],
): AsyncIterable<{ messages: InboundMessage[] }> {
  for (let from = 0; from === 0 || from < messages.length; from += mostInRequest) {
    yield { messages: messages.slice(from, from + mostInRequest) };
  }
}
