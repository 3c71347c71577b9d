/**
 * Streams SMS to the service with Connect, from one JSON object per line on standard input:
 * npx node connect-ingest.ts < messages.ndjson
 */

import { setTimeout as delay } from "node:timers/promises";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { ErrorDetailSchema } from "../../../src/gen/proto/phoneproof/v1/error_pb.ts";
import {
  InboundMessageOutcomeSchema,
  InboundMessageService,
} from "../../../src/gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { messages, type Sms } from "./messages.ts";
import { Outbox } from "./outbox.ts";
import { describeRefusal } from "./refusal.ts";

// Messages come only from standard input: with a file as argument, the program would silently wait for input.
if (process.argv.length !== 2) {
  console.error("usage: npx node connect-ingest.ts < messages.ndjson");
  process.exit(2);
}
const { PHONEPROOF_ADDRESS = "127.0.0.1:50051", PHONEPROOF_TOKEN = "" } = process.env;
const transport = createGrpcTransport({
  baseUrl: `http://${PHONEPROOF_ADDRESS}`,
  pingIntervalMs: 20_000,
  interceptors: [
    (next) => (request) => {
      request.header.set("authorization", `Bearer ${PHONEPROOF_TOKEN}`);
      return next(request);
    },
  ],
});
const inbound = createClient(InboundMessageService, transport);

const outbox = new Outbox<Sms>();

async function read(): Promise<void> {
  for await (const sms of messages()) await outbox.add(sms);
  outbox.end();
}

/** Connect pulls the next request when HTTP/2 flow control has room for it, which is the backpressure. */
async function* requests(connection: AbortSignal) {
  for (;;) {
    const batch = await outbox.next(connection);
    if (batch.length === 0) return;
    yield { messages: batch };
  }
}

/** Uses one connection until every message has its receipt or the connection breaks. */
async function exchange(): Promise<void> {
  const connection = new AbortController();
  outbox.startOver();
  try {
    for await (const { receipts } of inbound.streamInboundMessages(requests(connection.signal))) {
      for (const { messageId, outcome } of receipts) {
        console.log(messageId, InboundMessageOutcomeSchema.value[outcome]?.localName);
        outbox.settle(messageId);
      }
    }
  } finally {
    connection.abort();
  }
}

const reading = read();
const permanent = [Code.Unauthenticated, Code.PermissionDenied, Code.InvalidArgument, Code.Unimplemented];

for (let attempt = 0; !outbox.done; attempt += 1) {
  try {
    await exchange();
  } catch (error) {
    const failure = ConnectError.from(error);
    const [detail] = failure.findDetails(ErrorDetailSchema);
    const description = describeRefusal(failure.rawMessage, detail);
    if (permanent.includes(failure.code)) {
      console.error(description);
      process.exit(1);
    }
    console.error(`connecting again: ${description}`);
  }
  if (!outbox.done) await delay(Math.min(1_000, 100 * 2 ** attempt) * (0.5 + Math.random() / 2));
}
await reading;
