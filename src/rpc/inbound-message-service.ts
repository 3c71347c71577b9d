import { create } from "@bufbuild/protobuf";
import type { Call } from "../core/call.ts";
import { encodeId } from "../core/ids.ts";
import { inboundLimits } from "../core/inbound-message.ts";
import type { Settle } from "../core/settle.ts";
import type { InboundReceipt, TakeInboundMessages } from "../core/take-inbound-messages.ts";
import { inTimeSlices } from "../core/time-slices.ts";
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

/** A stream reads on while fewer of its messages than this lack a receipt; beyond, flow control stops the sender. */
const maxUnderWay = 5_000;
/**
 * A stream with messages in progress reads on while all streams of this process together have fewer unsettled messages
 * than this.
 */
const maxUnsettled = 10_000;
/** With ids of the maximum length, that is a megabyte: gRPC clients accept four in one message. */
const maxReceiptsInResponse = 1_000;

/** The method, with its requests decoded in their wire form. */
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
 * Reads messages and writes receipts concurrently: receipts leave in the order of the messages, grouped as they become
 * ready. The first failure ends the stream; the client resends what has no receipt. When `signal` aborts, nothing more
 * is read, messages in progress get their receipts, and the stream ends with the signal's reason.
 */
export async function* streamInboundMessages(
  requests: AsyncIterable<StreamInboundMessagesRequestWire>,
  call: Call,
  { takeMessages, process }: InboundStreams,
  signal: AbortSignal,
): AsyncIterable<StreamInboundMessagesResponse> {
  const underWay: Entry[] = [];
  let reading = true;
  /** Whether messages that were read are being prepared, to be in progress next. */
  let taking = false;
  let failure: unknown;
  const source = call.caller.kind === "service" ? call.caller.source : null;
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
    taking = false;
    failure ??= error;
    stopReading();
  });

  try {
    for (;;) {
      const first = underWay[0];
      if (first !== undefined) {
        if (!first.isSettled) await first.untilSettled();
        if (first.receipt === undefined) throw first.failure;
        yield create(StreamInboundMessagesResponseSchema, { receipts: takeSettled() });
        wakeReader();
      } else if (reading || taking) {
        await new Promise<void>((resolve) => {
          wakeWriter = resolve;
        });
      } else if (failure !== undefined) {
        throw failure;
      } else if (signal.aborted) {
        throw signal.reason;
      } else {
        return;
      }
    }
  } finally {
    signal.removeEventListener("abort", stopReading);
    stopReading();
  }

  async function read(): Promise<void> {
    for await (const { messages } of inTimeSlices(requests, source)) {
      if (!reading) return;
      const entries = messages.map(() => new Entry(process));
      const known = takeMessages(messages.map(fieldsOf), call, entries);
      if (known !== undefined) {
        taking = true;
        await known;
        taking = false;
      }
      process.unsettled += entries.length;
      for (const entry of entries) underWay.push(entry);
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

/** A message in progress. Once settled, it no longer counts among those of the process. */
class Entry implements Settle<InboundReceipt> {
  receipt: InboundReceipt | undefined;
  failure: unknown;
  isSettled = false;
  readonly #process: InboundStreams["process"];
  #wake: (() => void) | undefined;

  constructor(process: InboundStreams["process"]) {
    this.#process = process;
  }

  resolve(receipt: InboundReceipt): void {
    this.receipt = receipt;
    this.#settle();
  }

  reject(failure: unknown): void {
    this.failure = failure;
    this.#settle();
  }

  untilSettled(): Promise<void> {
    return new Promise((resolve) => {
      this.#wake = resolve;
    });
  }

  #settle(): void {
    this.isSettled = true;
    this.#process.unsettled--;
    this.#wake?.();
  }
}

function fieldsOf({ messageId, from, to, text, carrier, receivedAt }: InboundMessageWire) {
  return {
    messageId: messageId.length > maxIdBytes ? beginningOf(messageId) : textOf(messageId, maxIdBytes),
    from: textOf(from, bytesIn(inboundLimits.from)),
    to: textOf(to, bytesIn(inboundLimits.to)),
    text: textOf(text, bytesIn(inboundLimits.text)),
    carrier: textOf(carrier, bytesIn(inboundLimits.carrier)),
    receivedAt: receivedAt && { seconds: Number(receivedAt.seconds), nanos: receivedAt.nanos },
  };
}

/**
 * A receipt repeats its message's id. A longer id than this is refused, and repeated up to this length. Without the
 * limit, an id could be as long as a request: its receipts would be held until they are read, and no client accepts
 * such a response.
 */
const maxIdBytes = 1_024;

const bytesIn = (codePoints: number) => 4 * codePoints;

/** A string that no client can send: stands for bytes that are not UTF-8, or too many, and is refused as invalid. */
const noText = "\ud800";
const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** The part of an id that a receipt repeats, without a partial character at its end. */
function beginningOf(id: Uint8Array): string {
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(id.subarray(0, maxIdBytes), { stream: true });
}

function textOf(bytes: Uint8Array, maxBytes: number): string {
  if (bytes.length > maxBytes) return noText;
  try {
    return utf8.decode(bytes);
  } catch {
    return noText;
  }
}

function receiptMessage(receipt: InboundReceipt) {
  const message = create(InboundMessageReceiptSchema);
  message.messageId = receipt.messageId;
  message.outcome = outcomeMessage(receipt.outcome);
  if (receipt.verificationId !== null) message.verificationId = encodeId("vrf_", receipt.verificationId);
  message.duplicate = receipt.duplicate;
  return message;
}
