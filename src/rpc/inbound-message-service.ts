import { isUtf8 } from "node:buffer";
import { create } from "@bufbuild/protobuf";
import type { Call } from "../core/call.ts";
import { encodeId } from "../core/ids.ts";

import type { InboundReceipt, TakeInboundMessages } from "../core/take-inbound-messages.ts";
import { Failure } from "../failures.ts";
import {
  type InboundMessageWire,
  type StreamInboundMessagesRequestWire,
  StreamInboundMessagesRequestWireSchema,
} from "../gen/proto/phoneproof/internal/v1/inbound_message_wire_pb.ts";
import {
  InboundMessageReceiptSchema,
  InboundMessageService,
  type StreamInboundMessagesResponse,
  StreamInboundMessagesResponseSchema,
} from "../gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { outcomeMessage } from "./messages.ts";

/** A stream reads on while it has fewer messages without a receipt than this; then flow control holds the sender. */
const maxUnderWay = 5_000;
/** A stream with some under way reads on while all streams of this process together have fewer that are not settled. */
const maxUnsettled = 10_000;
const maxMessagesInRequest = 1_000;
const maxReceiptsInResponse = 1_000;

/** The method, its requests read by their wire form. */
export const streamInboundMessagesMethod = {
  ...InboundMessageService.method.streamInboundMessages,
  input: StreamInboundMessagesRequestWireSchema,
};

/** What the streams of a process share. */
export interface InboundStreams {
  readonly takeMessages: TakeInboundMessages;
  readonly process: { unsettled: number };
}

/**
 * Reads messages and writes receipts side by side: receipts leave in the order of the messages, grouped by
 * whatever is ready. The first failure ends the stream; what has no receipt is sent again by the client.
 * Where `signal` aborts, nothing more is read, what is under way gets its receipts, and the client is told
 * to come again.
 */
export async function* streamInboundMessages(
  requests: AsyncIterable<StreamInboundMessagesRequestWire>,
  call: Call,
  { takeMessages, process }: InboundStreams,
  signal: AbortSignal,
): AsyncIterable<StreamInboundMessagesResponse> {
  const underWay: Entry[] = [];
  let reading = true;
  let failure: unknown;
  let wakeWriter = () => {};
  let wakeReader = () => {};
  const stopReading = () => {
    reading = false;
    wakeWriter();
    wakeReader();
  };
  signal.addEventListener("abort", stopReading);
  if (signal.aborted) stopReading();

  read().then(stopReading, (error: unknown) => {
    failure ??= error;
    stopReading();
  });

  try {
    for (;;) {
      const first = underWay[0];
      if (first !== undefined) {
        if (first.receipt === undefined) await first.settled;
        yield create(StreamInboundMessagesResponseSchema, { receipts: takeSettled() });
        wakeReader();
      } else if (reading) {
        await new Promise<void>((resolve) => {
          wakeWriter = resolve;
        });
      } else if (failure !== undefined) {
        throw failure;
      } else if (signal.aborted) {
        throw new Failure("service_unavailable", { message: "The service is restarting: connect again." });
      } else {
        return;
      }
    }
  } finally {
    signal.removeEventListener("abort", stopReading);
    stopReading();
  }

  async function read(): Promise<void> {
    for await (const { messages } of requests) {
      if (!reading) return;
      if (messages.length > maxMessagesInRequest) {
        throw new Failure("validation_failed", {
          fields: [{ field: "messages", message: `must be at most ${maxMessagesInRequest} in one request` }],
        });
      }
      for (const receipt of await takeMessages(messages.map(fieldsOf), call))
        underWay.push(new Entry(receipt, process));
      wakeWriter();
      while (underWay.length >= (process.unsettled < maxUnsettled ? maxUnderWay : 1) && reading) {
        await new Promise<void>((resolve) => {
          wakeReader = resolve;
        });
      }
    }
  }

  function takeSettled() {
    let count = 0;
    while (count < maxReceiptsInResponse && underWay[count]?.receipt !== undefined) count++;
    return underWay.splice(0, count).map(({ receipt }) => receiptMessage(receipt as InboundReceipt));
  }
}

/** A message under way. */
class Entry {
  receipt: InboundReceipt | undefined;
  readonly settled: Promise<void>;

  constructor(receipt: Promise<InboundReceipt>, process: InboundStreams["process"]) {
    process.unsettled++;
    this.settled = receipt.then(
      (settled) => {
        process.unsettled--;
        this.receipt = settled;
      },
      (error: unknown) => {
        process.unsettled--;
        throw error;
      },
    );
    // The failure of a later entry must not go unhandled while an earlier one is waited for.
    this.settled.catch(() => {});
  }
}

function fieldsOf({ messageId, from, to, text, carrier, receivedAt }: InboundMessageWire) {
  return {
    messageId: textOf(messageId),
    from: textOf(from),
    to: textOf(to),
    text: textOf(text),
    carrier: textOf(carrier),
    receivedAt: receivedAt && { seconds: Number(receivedAt.seconds), nanos: receivedAt.nanos },
  };
}

/** No text that could be sent: stands for bytes that are none, and is refused as such. */
const noText = "\ud800";

function textOf(bytes: Uint8Array): string {
  if (!isUtf8(bytes)) return noText;
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString();
}

function receiptMessage(receipt: InboundReceipt) {
  const message = create(InboundMessageReceiptSchema);
  message.messageId = receipt.messageId;
  message.outcome = outcomeMessage(receipt.outcome);
  if (receipt.verificationId !== null) message.verificationId = encodeId("vrf_", receipt.verificationId);
  message.duplicate = receipt.duplicate;
  return message;
}
