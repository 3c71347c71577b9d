/**
 * Streams SMS to the service with @grpc/grpc-js, from one JSON object per line on standard input:
 * npx node grpc-js-ingest.ts < messages.ndjson
 */

import { once } from "node:events";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import {
  type ClientDuplexStream,
  credentials,
  type GrpcObject,
  loadPackageDefinition,
  Metadata,
  type ServiceClientConstructor,
  type ServiceError,
  status,
} from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";
import { detailOf } from "./grpc-js-errors.ts";
import { messages, type Sms } from "./messages.ts";
import { Outbox } from "./outbox.ts";
import { describeRefusal } from "./refusal.ts";

// Messages come only from standard input: with a file as argument, the program would silently wait for input.
if (process.argv.length !== 2) {
  console.error("usage: npx node grpc-js-ingest.ts < messages.ndjson");
  process.exit(2);
}
const { PHONEPROOF_ADDRESS = "127.0.0.1:50051", PHONEPROOF_TOKEN = "" } = process.env;

const loaded = loadSync("phoneproof/v1/inbound_message.proto", {
  includeDirs: [path.join(import.meta.dirname, "../../../proto")],
  enums: String,
  defaults: true,
});
const { v1 } = loadPackageDefinition(loaded).phoneproof as GrpcObject;
const InboundMessageService = (v1 as GrpcObject).InboundMessageService as ServiceClientConstructor;
const inbound = new InboundMessageService(PHONEPROOF_ADDRESS, credentials.createInsecure(), {
  "grpc.keepalive_time_ms": 20_000,
  "grpc.max_reconnect_backoff_ms": 1_000,
});
const metadata = new Metadata();
metadata.set("authorization", `Bearer ${PHONEPROOF_TOKEN}`);

interface Receipts {
  readonly receipts: readonly { readonly messageId: string; readonly outcome: string }[];
}

const outbox = new Outbox<Sms>();

async function read(): Promise<void> {
  for await (const sms of messages()) await outbox.add(sms);
  outbox.end();
}

/** The result of `write` is the backpressure: false means to wait for `drain`. */
async function send(call: ClientDuplexStream<object, Receipts>, connection: AbortSignal): Promise<void> {
  for (;;) {
    const batch = await outbox.next(connection);
    if (batch.length === 0) break;
    if (!call.write({ messages: batch })) await once(call, "drain", { signal: connection });
  }
  call.end();
}

/** Uses one connection until every message has its receipt or the connection breaks. */
async function exchange(): Promise<void> {
  const connection = new AbortController();
  const call: ClientDuplexStream<object, Receipts> = inbound.StreamInboundMessages?.(metadata);
  outbox.startOver();
  // A broken connection is reported below, where receipts are read.
  send(call, connection.signal).catch(() => call.cancel());
  try {
    for await (const { receipts } of call as AsyncIterable<Receipts>) {
      for (const { messageId, outcome } of receipts) {
        console.log(messageId, outcome.replace("INBOUND_MESSAGE_OUTCOME_", ""));
        outbox.settle(messageId);
      }
    }
  } finally {
    connection.abort();
  }
}

const reading = read();
const permanent = [
  status.UNAUTHENTICATED,
  status.PERMISSION_DENIED,
  status.INVALID_ARGUMENT,
  status.UNIMPLEMENTED,
];

for (let attempt = 0; !outbox.done; attempt += 1) {
  try {
    await exchange();
  } catch (error) {
    const failure = error as ServiceError;
    const description = describeRefusal(failure.details, detailOf(failure));
    if (permanent.includes(failure.code)) {
      console.error(description);
      process.exit(1);
    }
    console.error(`connecting again: ${description}`);
  }
  if (!outbox.done) await delay(Math.min(1_000, 100 * 2 ** attempt) * (0.5 + Math.random() / 2));
}
await reading;
inbound.close();
