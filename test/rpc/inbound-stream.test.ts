import { getEventListeners, once } from "node:events";
import http2 from "node:http2";
import { setImmediate as nextTurn } from "node:timers/promises";
import { gzipSync } from "node:zlib";
import { create, fromBinary, toBinary } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { afterAll, describe, expect, onTestFinished, test, vi } from "vitest";
import type { Call } from "../../src/core/call.ts";
import type { InboundReceipt } from "../../src/core/take-inbound-messages.ts";
import { Failure } from "../../src/failures.ts";
import {
  InboundMessageWireSchema,
  StreamInboundMessagesRequestWireSchema,
} from "../../src/gen/proto/phoneproof/internal/v1/inbound_message_wire_pb.ts";
import {
  InboundMessageSchema,
  InboundMessageService,
  StreamInboundMessagesRequestSchema,
  StreamInboundMessagesResponseSchema,
} from "../../src/gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { ServiceTokenService } from "../../src/gen/proto/phoneproof/v1/service_token_pb.ts";
import { streamInboundMessages } from "../../src/rpc/inbound-message-service.ts";
import { merchant } from "../gateway/merchant.ts";
import { atFileEnd } from "../harness/endings.ts";
import { type Receipt, startTestService, type TestService } from "../harness/service.ts";
import { shortenTimers, suppressTimers } from "../harness/timers.ts";
import { scrape } from "../ops/scrape.ts";
import { untilWaiting } from "../service/barrier.ts";
import { createPending, eventsOf } from "../service/pending.ts";
import { inboundMessage, newPhone, receiptOf, type SmsFields } from "../service/sms-source.ts";
import { refusalOf } from "./grpc-answer.ts";
import { connectRaw, framed, type RawCall, type RawConnection } from "./raw-grpc.ts";

const service = await startTestService();
const project = await service.createProject();
const shop = merchant(service.httpUrl, project.liveKey);
const to = project.liveNumber;

const times = <T>(count: number, make: (index: number) => T): T[] =>
  Array.from({ length: count }, (_, index) => make(index));

const bytesOf = (messages: readonly SmsFields[]): Uint8Array =>
  toBinary(StreamInboundMessagesRequestSchema, {
    $typeName: "phoneproof.v1.StreamInboundMessagesRequest",
    messages: messages.map(inboundMessage),
  });

const connections = new Set<RawConnection>();
// Before the service closes, which waits for open connections.
afterAll(() => connections.forEach((connection) => void connection.destroy()));

/** A stream without a client library. */
function openStream(of: TestService = service, token = of.adminToken, headers: Record<string, string> = {}) {
  const connection = connectRaw(of.grpcAddress);
  connections.add(connection);
  const { typeName, method } = InboundMessageService;
  const call = connection.call(`${typeName}/${method.streamInboundMessages.name}`, {
    authorization: `Bearer ${token}`,
    ...headers,
  });
  return {
    connection,
    call,
    send: (...messages: SmsFields[]) => call.send(bytesOf(messages)),
    receipts: (count: number) => receiptsFrom(call, count),
  };
}

/** At least `count` receipts, or fewer if the stream ends. */
async function receiptsFrom(call: RawCall, count: number): Promise<Receipt[]> {
  const receipts: Receipt[] = [];
  while (receipts.length < count) {
    const message = await call.next();
    if (message === undefined) break;
    receipts.push(...fromBinary(StreamInboundMessagesResponseSchema, message).receipts.map(receiptOf));
  }
  return receipts;
}

const hello = (messageId: string): SmsFields => ({ messageId, to, text: `hello, ${messageId}` });

test("after the client's half-close every message still gets its receipt, and then the stream ends with OK", async () => {
  const { call, send, receipts } = openStream();
  const ids = times(3000, (index) => `drain-${index}`);
  for (let from = 0; from < ids.length; from += 1000) void send(...ids.slice(from, from + 1000).map(hello));
  call.halfClose();
  expect((await receipts(Number.POSITIVE_INFINITY)).map(({ messageId }) => messageId)).toEqual(ids);
  expect(await call.status).toEqual({ code: 0, message: "" });
});

test("a stream whose last request is empty ends with OK as any other", async () => {
  const { call, send, receipts } = openStream();
  await send(hello("before-nothing"));
  await call.send(Buffer.of());
  call.halfClose();
  expect(await receipts(Number.POSITIVE_INFINITY)).toHaveLength(1);
  expect(await call.status).toEqual({ code: 0, message: "" });
});

test("receipts arrive while the stream stays open, in the order of the messages across requests", async () => {
  const { send, receipts } = openStream();
  for (let round = 0; round < 50; round++) {
    const ids = times(round % 4, (index) => `open-${round}-${index}`);
    await send(...ids.map(hello));
    expect((await receipts(ids.length)).map(({ messageId }) => messageId)).toEqual(ids);
  }
});

test("each of several concurrent streams gets the receipts of its own messages", async () => {
  const ids = await Promise.all(
    times(8, async (stream) => {
      const { call, send, receipts } = openStream();
      for (let request = 0; request < 20; request++) void send(hello(`own-${stream}-${request}`));
      call.halfClose();
      return (await receipts(20)).map(({ messageId }) => messageId);
    }),
  );
  expect(ids).toEqual(times(8, (stream) => times(20, (request) => `own-${stream}-${request}`)));
});

test("a source's message does not wait for all that another source has sent before", async () => {
  const resuming = openStream(service, await service.createToken({ scope: "ingest", source: "resuming" }));
  const live = openStream(service, await service.createToken({ scope: "ingest", source: "live" }));
  // Both are known before: looking a token up would take another table.
  for (const [index, stream] of [resuming, live].entries()) {
    await stream.send(hello(`known-${index}`));
    await stream.receipts(1);
  }
  const pending = await createPending(shop);
  const holder = await service.db.connect();
  try {
    await holder.query("BEGIN");
    await holder.query("LOCK TABLE inbound_message IN SHARE MODE");
    for (let round = 0; round < 4; round++) {
      await resuming.send(...times(1000, (index) => hello(`resuming-${round}-${index}`)));
    }
    await untilWaiting(service.db, 1);
    await live.send({ messageId: "live", to, text: pending.text, from: newPhone() });
    // When this is answered, the service has read the message as well.
    await createPending(shop);
  } finally {
    await holder.query("COMMIT");
    holder.release();
  }
  expect(await live.receipts(1)).toMatchObject([{ messageId: "live", outcome: "VERIFIED" }]);
  expect(await resuming.receipts(4000)).toHaveLength(4000);
  const { rows } = await service.db.query(
    `SELECT count(*)::int AS before FROM inbound_message
     WHERE source = 'resuming' AND ingested_at < (SELECT ingested_at FROM inbound_message WHERE message_id = 'live')`,
  );
  // Those of the two batches that may have been under way. A batch has 500.
  expect(rows[0]?.before).toBeLessThan(1_500);
});

test("messages resent after the connection was cut get one receipt each, with the first outcome", async () => {
  const pendings = await Promise.all(times(60, () => createPending(shop)));
  const messages = pendings.map(
    (pending, index): SmsFields => ({
      messageId: `cut-${index}`,
      to,
      text: index % 3 === 0 ? "no code" : pending.text,
      from: newPhone(),
    }),
  );
  const first = openStream();
  for (const message of messages) void first.send(message).catch(() => {});
  const before = await first.receipts(10);
  first.connection.destroy();

  const again = openStream();
  for (const message of messages) void again.send(message);
  again.call.halfClose();
  const receipts = await again.receipts(messages.length);
  expect(
    receipts.map(({ messageId, outcome, verificationId }) => [messageId, outcome, verificationId]),
  ).toEqual(
    messages.map(({ messageId }, index) =>
      index % 3 === 0 ? [messageId, "NO_MATCH", ""] : [messageId, "VERIFIED", pendings[index]?.id],
    ),
  );
  for (const [index, { duplicate: _, ...receipt }] of before.entries()) {
    expect(receipts[index]).toEqual({ ...receipt, duplicate: true });
  }
  for (const [index, { id }] of pendings.entries()) {
    expect(await eventsOf(service.db, id)).toEqual(index % 3 === 0 ? [] : ["verification.verified"]);
  }
});

test("a request may hold 1000 messages; one with more ends the stream, after the receipts of earlier requests", async () => {
  const { call, send, receipts } = openStream();
  await send(...times(1000, (index) => hello(`most-${index}`)));
  void send(...times(1001, (index) => hello(`more-${index}`))).catch(() => {});
  const ids = (await receipts(Number.POSITIVE_INFINITY)).map(({ messageId }) => messageId);
  expect(ids).toEqual(times(1000, (index) => `most-${index}`));
  expect(await call.status).toMatchObject({
    code: Code.InvalidArgument,
    message: expect.any(String),
  });

  const client = service.client(InboundMessageService);
  const requests = (async function* () {
    yield { messages: times(1001, (index) => inboundMessage(hello(`more-${index}`))) };
  })();
  const refusal = await Array.fromAsync(client.streamInboundMessages(requests)).catch(refusalOf);
  expect(refusal).toMatchObject({
    code: "validation_failed",
    fields: ["messages"],
    status: Code.InvalidArgument,
  });
  const { rows } = await service.db.query("SELECT FROM inbound_message WHERE message_id LIKE 'more-%'");
  expect(rows).toEqual([]);
});

/** Hand-encoded protobuf: `again` repeats a field, `within` puts bytes into a length-delimited field. */
const again = (count: number, hex: string) => Buffer.alloc((count * hex.length) / 2, hex, "hex");
const within = (tag: number, content: Uint8Array) => {
  const length: number[] = [];
  for (let rest = content.length; ; rest >>>= 7) {
    length.push(rest < 128 ? rest : (rest & 127) | 128);
    if (rest < 128) return Buffer.concat([Buffer.of(tag, ...length), content]);
  }
};
/** A decoder that reaches this refuses the request as malformed. */
const broken = Buffer.from("0aff", "hex");
const lots = 4_000_000;

test.for([
  { name: "4 million empty messages", bytes: again(lots, "0a00"), code: "validation_failed" },
  {
    name: "one empty message too many, followed by malformed bytes",
    bytes: Buffer.concat([again(1_001, "0a00"), broken]),
    code: "validation_failed",
  },
  {
    name: "a message with 4 million text fields",
    bytes: within(0x0a, again(lots, "0a00")),
    code: "malformed_request",
  },
  {
    name: "a message with 4 million timestamps",
    bytes: within(0x0a, again(lots, "3200")),
    code: "malformed_request",
  },
  {
    name: "a timestamp with 4 million fields for its seconds",
    bytes: within(0x0a, within(0x32, again(lots, "0801"))),
    code: "malformed_request",
  },
  { name: "4 million unknown fields", bytes: again(lots, "7801"), code: "malformed_request" },
  {
    name: "4 million messages encoded as numbers",
    bytes: Buffer.concat([again(lots, "0800")]),
    code: "malformed_request",
  },
  {
    name: "a message with a length beyond the request's end",
    bytes: Buffer.concat([
      within(0x7a, Buffer.alloc(3_000)),
      Buffer.from("0aff7f", "hex"),
      again(1_001, "0a00"),
    ]),
    code: "malformed_request",
  },
] as const)("a request with $name is refused, compressed or not, after the receipts of earlier requests", async ({
  bytes,
  code,
}) => {
  for (const way of ["plain", "packed", "with a flag that gRPC does not know"]) {
    const packed = way === "packed";
    const stream = openStream(service, service.adminToken, packed ? { "grpc-encoding": "gzip" } : {});
    const id = `before-too-much-${newPhone()}`;
    const before = bytesOf([hello(id)]);
    await stream.call.send(packed ? gzipSync(before) : before, packed);
    const frame = framed(packed ? gzipSync(bytes) : bytes, packed);
    if (way.startsWith("with")) frame[0] = 0b10;
    stream.call.write(frame);
    const ids = (await stream.receipts(Number.POSITIVE_INFINITY)).map(({ messageId }) => messageId);
    expect(ids).toEqual([id]);
    expect(await stream.call.status).toMatchObject({ code: Code.InvalidArgument, detail: { code } });
  }
});

/**
 * What some decoders read as something else than others, and the one behind the limits accepts. `text` follows another field of the
 * same message, and `rest` the message.
 */
test.for([
  { name: "a length of six bytes", text: "7a818080808000ff", rest: "" },
  { name: "a number of eleven bytes", text: `78${"80".repeat(10)}00`, rest: "" },
  { name: "a text field encoded as a number", text: "08027801", rest: "" },
  { name: "a timestamp's seconds encoded as text", text: "32040a027801", rest: "" },
  { name: "a timestamp that ends in the middle of a field", text: "32017801", rest: "" },
  { name: "a group", text: "7b7c", rest: "" },
  { name: "a field that continues beyond its message", text: "7a05", rest: "7d78017801" },
  { name: "a number that begins at the end of its message", text: "78", rest: "7d78017801" },
])("a request with $name is refused, in one piece or in two", async ({ text, rest }) => {
  const message = Buffer.concat([within(0x7a, Buffer.alloc(3_000)), Buffer.from(text, "hex")]);
  const bytes = Buffer.concat([within(0x0a, message), Buffer.from(rest, "hex")]);
  for (const endOfFirst of [0, 1_000]) {
    const { call, receipts } = openStream();
    const before = bytesOf([hello(`before-${text}-${endOfFirst}`)]);
    call.write(Buffer.concat([framed(before), framed(bytes).subarray(0, endOfFirst)]));
    expect(await receipts(1)).toHaveLength(1);
    call.write(framed(bytes).subarray(endOfFirst));
    expect(await receipts(Number.POSITIVE_INFINITY)).toEqual([]);
    expect(await call.status).toMatchObject({ detail: { code: "malformed_request" } });
  }
});

test.for([
  { name: "one message", count: 1 },
  { name: "two messages", count: 2 },
])("a request may have 17,000 fields in $name, and not one more", async ({ count }) => {
  const ofEach = 17_000 / count - 1;
  for (const more of [0, 1]) {
    const messages = times(count, (index) =>
      within(0x0a, again(ofEach + (index === count - 1 ? more : 0), "7801")),
    );
    const { call, receipts } = openStream();
    void call.send(Buffer.concat(messages)).catch(() => {});
    call.halfClose();
    expect(await receipts(Number.POSITIVE_INFINITY)).toHaveLength(more === 0 ? count : 0);
    expect(await call.status).toMatchObject(
      more === 0 ? { code: 0 } : { detail: { code: "malformed_request" } },
    );
  }
});

test.for([
  { name: "in one write with an earlier request", joined: true },
  { name: "on its own", joined: false },
])("a request over 8 MiB $name is refused by its announced size, after the receipts of earlier requests", async ({
  joined,
}) => {
  const { call, receipts } = openStream();
  const id = `before-too-large-${newPhone()}`;
  const before = framed(bytesOf([hello(id)]));
  const announced = Buffer.alloc(5);
  announced.writeUInt32BE(8 * 2 ** 20 + 1, 1);
  if (joined) call.write(Buffer.concat([before, announced]));
  else {
    call.write(before);
    expect(await receipts(1)).toMatchObject([{ messageId: id }]);
    call.write(announced);
  }
  const left = await receipts(Number.POSITIVE_INFINITY);
  expect(left.map(({ messageId }) => messageId)).toEqual(joined ? [id] : []);
  expect(await call.status).toMatchObject({
    code: Code.InvalidArgument,
    detail: { code: "body_too_large" },
  });
});

test("requests of a thousand messages are accepted in chunks of any size", async () => {
  const session = http2.connect(`http://${service.grpcAddress}`);
  atFileEnd(() => session.destroy());
  const message = bytesOf(times(1_000, (index) => ({ ...hello(`pieces-${index}`), receivedAt: new Date() })));
  const prefix = Buffer.alloc(5);
  prefix.writeUInt32BE(message.length, 1);
  const bytes = Buffer.concat([prefix, message, prefix, message]);
  const stream = session.request({
    ":method": "POST",
    ":path": `/${InboundMessageService.typeName}/StreamInboundMessages`,
    "content-type": "application/grpc",
    authorization: `Bearer ${service.adminToken}`,
  });
  let status: unknown;
  stream.on("trailers", (trailers) => {
    status = trailers["grpc-status"];
  });
  stream.resume();
  for (let at = 0, size = 1; at < bytes.length; at += size, size = (size * 7) % 509 || 1) {
    stream.write(bytes.subarray(at, at + size));
  }
  stream.end();
  await once(stream, "close");
  expect(status).toBe("0");
});

test("a truncated request ends its own stream only, after the receipts of earlier requests", async () => {
  const { call, send, receipts } = openStream();
  const neighbour = openStream();
  await send(hello("before-the-cut"));
  await call.send(Buffer.from("0aff", "hex"));
  const ids = (await receipts(Number.POSITIVE_INFINITY)).map(({ messageId }) => messageId);
  expect(ids).toEqual(["before-the-cut"]);
  expect((await call.status).code).toBe(Code.InvalidArgument);
  await neighbour.send(hello("beside-the-cut"));
  expect(await neighbour.receipts(1)).toHaveLength(1);
});

test.for([
  "00",
  "00000000",
  "0000000010",
  "00000000100a",
])("a stream that ends within a request (%s) ends with an error, after the receipts of earlier requests", async (begun) => {
  const { call, send, receipts } = openStream();
  const id = `before-the-end-${begun}`;
  await send(hello(id));
  call.write(Buffer.from(begun, "hex"));
  call.halfClose();
  const ids = (await receipts(Number.POSITIVE_INFINITY)).map(({ messageId }) => messageId);
  expect(ids).toEqual([id]);
  expect(await call.status).toMatchObject({
    code: Code.InvalidArgument,
    detail: { code: "malformed_request" },
  });
});

test("a message whose text is not UTF-8 is INVALID, and the messages before and after it are processed", async () => {
  const { call, send, receipts } = openStream();
  await send(hello("before-the-broken"));
  await call.send(brokenText());
  await send(hello("after-the-broken"));
  expect(await receipts(3)).toMatchObject([
    { messageId: "before-the-broken" },
    { messageId: "broken", outcome: "INVALID" },
    { messageId: "after-the-broken" },
  ]);
});

function brokenText(): Uint8Array {
  const bytes = Buffer.from(bytesOf([{ messageId: "broken", to, text: "Ä" }]));
  bytes[bytes.indexOf("Ä")] = 0x84;
  return bytes;
}

test("a text may have 2000 characters, however many bytes they take, and an id begins with a byte order mark if it was sent with one", async () => {
  const { send, receipts } = openStream();
  const ids = ["\ufeffmost-bytes", "\ufefftoo-many"];
  await send(...ids.map((messageId, more) => ({ messageId, to, text: "\u{1f4f1}".repeat(2_000 + more) })));
  expect(await receipts(2)).toMatchObject([
    { messageId: ids[0], outcome: "NO_MATCH" },
    { messageId: ids[1], outcome: "INVALID" },
  ]);
});

test("a message whose id is too long is INVALID, with the id truncated in its receipt; others are processed", async () => {
  const { send, receipts } = openStream();
  const tooLong = ["i".repeat(300), "i".repeat(1_024), "i".repeat(5_000_000), "가".repeat(500)];
  const messages = tooLong.map((messageId) => ({ messageId, to, text: "hello" }));
  await send(hello("before-the-long"), ...messages, hello("after-the-long"));
  expect(await receipts(6)).toMatchObject([
    { messageId: "before-the-long", outcome: "NO_MATCH" },
    { messageId: "i".repeat(300), outcome: "INVALID" },
    { messageId: "i".repeat(1_024), outcome: "INVALID" },
    { messageId: "i".repeat(1_024), outcome: "INVALID" },
    { messageId: "가".repeat(341), outcome: "INVALID" },
    { messageId: "after-the-long", outcome: "NO_MATCH" },
  ]);
});

test("a client that disconnects during a large answer does not cause console output", async () => {
  const printed = vi.spyOn(console, "error");
  onTestFinished(() => printed.mockRestore());
  const connection = connectRaw(service.grpcAddress, { windowBytes: 0 });
  connections.add(connection);
  const authorization = `Bearer ${service.adminToken}`;
  const { typeName, method } = InboundMessageService;
  const path = `${typeName}/${method.streamInboundMessages.name}`;
  const leaving = times(4, () => connection.call(path, { authorization }));
  const ids = times(1_000, (index) => `${index}`.padEnd(1_024, "i"));
  for (const call of leaving) await call.send(bytesOf(ids.map((messageId) => ({ messageId, to, text: "" }))));
  // By then the answers of `leaving` are being written.
  const other = openStream();
  await other.send(hello("while-others-leave"));
  await other.receipts(1);
  for (const call of leaving) call.cut();
  expect((await connection.call("nothing/There").status).code).toBe(Code.Unimplemented);
  expect(printed).not.toHaveBeenCalled();
});

describe("a request whose remaining bytes do not arrive", () => {
  /** A request with a message whose text has so many bytes. They are not encoded, which would take as long as all the rest. */
  function withText(messageId: string, length: number): Buffer {
    const { field } = InboundMessageSchema;
    const message = toBinary(InboundMessageSchema, inboundMessage({ messageId, to, text: "" }));
    const text = within((field.text.number << 3) | 2, Buffer.alloc(length, "t"));
    return within(0x0a, Buffer.concat([message, text]));
  }
  /** Until the end of the test, however long the rest of a request takes. */
  function neverTimeOut(): void {
    suppressTimers(10_000);
    // Otherwise what a request has waited for its earlier parts would shorten its later timers.
    const clock = vi.spyOn(performance, "now").mockReturnValue(performance.now());
    onTestFinished(() => clock.mockRestore());
  }

  /** Its text is too long. */
  const large = (messageId: string) => withText(messageId, 8_000_000);

  /** Sends all of it but the last byte, which `finish` sends. */
  async function begin(messageId: string, token: string) {
    const stream = openStream(service, token);
    await stream.send(hello(`before-${messageId}`));
    await stream.receipts(1);
    const message = large(messageId);
    const prefix = Buffer.alloc(5);
    prefix.writeUInt32BE(message.length, 1);
    stream.call.write(prefix);
    stream.call.write(message.subarray(0, -1));
    // Answered once the service has read the announced size.
    await stream.connection.call("nothing/There").status;
    return { ...stream, finish: () => stream.call.write(message.subarray(-1)) };
  }

  test("if it is large, holds up only a third large request of the same token, and no other stream", async () => {
    neverTimeOut();
    const token = await service.createToken({ scope: "ingest", source: "large" });
    const other = await service.createToken({ scope: "ingest", source: "other" });
    const begun = [await begin("first", token), await begin("second", token)];
    const third = openStream(service, token);
    // The token's streams continue with requests of the usual size, and other tokens' with any size. If the third were not held up,
    // it would have its receipt before these do.
    let isThird = false;
    void third.call.send(large("third"));
    const thirdReceipts = third.receipts(1).finally(() => {
      isThird = true;
    });
    for (const [owner, round] of times(8, (index) => [index % 2 ? other : token, index] as const)) {
      const stream = openStream(service, owner);
      const bytes = owner === other ? large(`beside-${round}`) : bytesOf([hello(`beside-${round}`)]);
      void stream.call.send(bytes);
      expect(await stream.receipts(1)).toMatchObject([{ messageId: `beside-${round}` }]);
    }
    expect(isThird).toBe(false);
    begun[0]?.finish();
    expect(await begun[0]?.receipts(1)).toMatchObject([{ messageId: "first", outcome: "INVALID" }]);
    expect(await thirdReceipts).toMatchObject([{ messageId: "third", outcome: "INVALID" }]);
    // A call that is cut frees its place as well.
    begun[1]?.call.cut();
    const last = await begin("last", token);
    last.finish();
    expect(await last.receipts(1)).toMatchObject([{ messageId: "last" }]);
  });

  test("if it is as large as may be, does not hold up those behind it on the stream once it has arrived", async () => {
    neverTimeOut();
    const token = await service.createToken({ scope: "ingest", source: "large-in-a-row" });
    const requests = [8, 3, 3, 3, 3].map((mebibytes, index) => {
      const most = mebibytes * 2 ** 20;
      return withText(`in-a-row-${index}`, 2 * most - withText(`in-a-row-${index}`, most).length);
    });
    expect(requests[0]).toHaveLength(8 * 2 ** 20);
    const { call, receipts } = openStream(service, token);
    const bytes = Buffer.concat(requests.map((request) => framed(request)));
    let at = 0;
    let written = 0;
    for (const request of requests) {
      at += framed(request).length;
      // With the end of each, the beginning of the next arrives.
      call.write(bytes.subarray(written, at + 100_000));
      written = at + 100_000;
      expect(await receipts(1)).toHaveLength(1);
    }
  });

  test("ends its stream after a timeout, after the receipts of earlier requests", async () => {
    shortenTimers(10_000);
    const { call, send, receipts } = openStream();
    await send(hello("before-the-half"));
    call.write(Buffer.from("000000040a0a", "hex"));
    expect(await receipts(Number.POSITIVE_INFINITY)).toMatchObject([{ messageId: "before-the-half" }]);
    expect(await call.status).toMatchObject({
      code: Code.InvalidArgument,
      detail: { code: "malformed_request" },
    });
  });

  /** Sets the clock forward by so many milliseconds. */
  function movableClock(): (milliseconds: number) => void {
    let ahead = 0;
    const now = performance.now.bind(performance);
    const clock = vi.spyOn(performance, "now").mockImplementation(() => now() + ahead);
    onTestFinished(() => clock.mockRestore());
    return (milliseconds) => {
      ahead += milliseconds;
    };
  }

  test("ends its stream after ten seconds also if it arrives a piece at a time", async () => {
    const moveClock = movableClock();
    const { connection, call, send, receipts } = openStream();
    let isOver = false;
    void call.status.then(() => {
      isOver = true;
    });
    // Once this is answered, the stream is read: its token was looked up.
    await send(hello("before-the-pieces"));
    await receipts(1);
    // A message of a field that nothing knows, and of 8,388,600 bytes.
    call.write(Buffer.from("00007ffffd7af8ffff03", "hex"));
    for (let sent = 0; sent < 40 && !isOver; sent++) {
      call.write(Buffer.alloc(5_000));
      // Answered once the service has read what was sent before.
      await connection.call("nothing/There").status;
      moveClock(1_000);
    }
    expect(isOver).toBe(true);
    expect(await call.status).toMatchObject({ detail: { code: "malformed_request" } });
  });

  test("has ten seconds of its own, whatever those before it took", async () => {
    const moveClock = movableClock();
    const { call, receipts } = openStream();
    const neighbour = openStream();
    const [first, second, third] = times(3, (index) => framed(bytesOf([hello(`slow-${index}`)]))) as [
      Buffer,
      Buffer,
      Buffer,
    ];
    call.write(Buffer.concat([first, second.subarray(0, 10)]));
    await receipts(1);
    moveClock(6_000);
    call.write(Buffer.concat([second.subarray(10), third.subarray(0, 10)]));
    await receipts(1);
    moveClock(6_000);
    call.write(third.subarray(10, 11));
    await neighbour.send(hello("beside-slow"));
    await neighbour.receipts(1);
    call.write(third.subarray(11));
    expect(await receipts(1)).toMatchObject([{ messageId: "slow-2" }]);
  });
});

test.for([
  "StreamInboundMessages?as=one",
  "Stream%49nboundMessages",
])("the stream is also served at %s, for as long as its client likes", async (name) => {
  shortenTimers(10_000);
  const connection = connectRaw(service.grpcAddress);
  connections.add(connection);
  const call = connection.call(`${InboundMessageService.typeName}/${name}`, {
    authorization: `Bearer ${service.adminToken}`,
  });
  for (const round of times(3, (index) => index)) {
    await call.send(bytesOf([hello(`${name}-${round}`)]));
    expect(await receiptsFrom(call, 1)).toHaveLength(1);
    // Shortened too, and set later: a service that gave the stream ten seconds for a whole message would have ended it by then.
    await new Promise<void>((resolve) => setTimeout(resolve, 10_000));
  }
  call.halfClose();
  expect((await call.status).code).toBe(0);
});

test("a client that does not read receipts is held back, and gets all of them once it reads", async () => {
  const { call, receipts } = openStream();
  const from = newPhone();
  const atMost = 100_000;
  let [sent, enough] = [0, false];
  const sending = (async () => {
    while (sent < atMost && !enough) {
      const messages = times(100, (index): SmsFields => {
        const messageId = `held-${sent + index}`;
        return { messageId, from, to, text: `${messageId} ${"hello ".repeat(80)}` };
      });
      await call.send(bytesOf(messages));
      sent += messages.length;
    }
    call.halfClose();
  })();

  // Other streams continue meanwhile. If this one does not advance during thirty of their messages, it is blocked.
  const other = openStream();
  let [sentBefore, unchanged] = [0, 0];
  for (let round = 0; unchanged < 30; round++) {
    await other.send(hello(`beside-${round}`));
    await other.receipts(1);
    unchanged = sent === sentBefore ? unchanged + 1 : 0;
    sentBefore = sent;
  }
  const { rows } = await service.db.query<{ taken: number }>(
    "SELECT count(*)::int AS taken FROM inbound_message WHERE sender = $1",
    [from],
  );
  expect(rows[0]?.taken).toBeLessThan(20_000);
  expect(sent).toBeLessThan(25_000);

  enough = true;
  const ids = (await receipts(Number.POSITIVE_INFINITY)).map(({ messageId }) => messageId);
  await sending;
  expect(ids).toEqual(times(sent, (index) => `held-${index}`));
});

test("however many receipts wait for a slow client, no response exceeds the 4 MiB that clients accept", async () => {
  const { call, send } = openStream();
  const taken = async () =>
    (await scrape(service.opsUrl)).sum("phoneproof_inbound_messages_total", { outcome: "invalid" });
  const before = await taken();
  // Their ids are too long, so that their receipts wait only for the client.
  const ids = times(6_000, (index) => `${index}`.padEnd(1_024, "i"));
  for (let from = 0; from < ids.length; from += 1_000) {
    await send(...ids.slice(from, from + 1_000).map((messageId) => ({ messageId, to, text: "" })));
  }
  await expect.poll(taken).toBe(before + ids.length);
  call.halfClose();
  const read: string[] = [];
  for (let answer = await call.next(); answer !== undefined; answer = await call.next()) {
    expect(answer.length).toBeLessThan(4 * 1024 * 1024);
    const { receipts } = fromBinary(StreamInboundMessagesResponseSchema, answer);
    read.push(...receipts.map(({ messageId }) => messageId));
  }
  expect(read).toEqual(ids);
});

test("when the service stops, messages that it has taken get their receipts, and the stream ends with UNAVAILABLE", async () => {
  const stopping = await startTestService();
  const { liveNumber } = await stopping.createProject();
  const { connection, call, send, receipts } = openStream(stopping);
  const from = newPhone();
  const message = (index: number): SmsFields => ({
    messageId: `stop-${index}`,
    from,
    to: liveNumber,
    text: `hello ${index}`,
  });
  await send(message(0));
  await receipts(1);

  // The sender's row is locked, so that a message is in progress while the service is asked to stop.
  const holder = await stopping.db.connect();
  await holder.query("BEGIN");
  await holder.query("SELECT FROM inbound_sender FOR UPDATE");
  await send(...times(10, (index) => message(index + 1)));
  await untilWaiting(stopping.db, 1);
  const closing = stopping.close();
  await vi.waitUntil(() => isRefused(stopping.httpUrl), { interval: 5, timeout: 45_000 });
  await holder.query("COMMIT");
  holder.release();

  const received = await receipts(Number.POSITIVE_INFINITY);
  expect(received.map(({ messageId }) => messageId)).toEqual(times(10, (index) => `stop-${index + 1}`));
  expect((await call.status).code).toBe(Code.Unavailable);
  connection.destroy();
  await closing;
});

/** Whether connections are refused. */
const isRefused = (url: string) =>
  fetch(url).then(
    () => false,
    () => true,
  );

const callOfSource = { caller: { kind: "service", source: "gateway" } } as unknown as Call;

/**
 * A stream whose client sends groups of a thousand messages and stays, and whose messages get no receipt until `settle`, which gives
 * those that were taken theirs. `process`: what it shares with other streams. `prepared`: until then messages are prepared. `reads`: how
 * many responses are read.
 */
function unsettledStream(
  signal: AbortSignal,
  {
    groups = 10,
    process = { unsettled: 0 },
    prepared,
    reads = Number.POSITIVE_INFINITY,
  }: { groups?: number; process?: { unsettled: number }; prepared?: Promise<void>; reads?: number } = {},
) {
  const state = { taken: 0, isLeft: false };
  const settles: (() => void)[] = [];
  async function* requests() {
    const messages = times(1_000, () => create(InboundMessageWireSchema));
    try {
      for (let sent = 0; sent < groups; sent++)
        yield create(StreamInboundMessagesRequestWireSchema, { messages });
      await new Promise(() => {});
    } finally {
      state.isLeft = true;
    }
  }
  const receipt: InboundReceipt = {
    messageId: "1",
    outcome: "no_match",
    verificationId: null,
    duplicate: false,
  };
  const responses = streamInboundMessages(
    requests(),
    callOfSource,
    {
      takeMessages(messages, _call, receivers) {
        state.taken += messages.length;
        const submit = () => {
          for (const receiver of receivers) settles.push(() => receiver.resolve(receipt));
        };
        if (prepared !== undefined) return prepared.then(submit);
        submit();
        return undefined;
      },
      process,
    },
    signal,
  );
  const ended = (async () => {
    let receipts = 0;
    try {
      let read = 0;
      for await (const response of responses) {
        receipts += response.receipts.length;
        if (++read === reads) break;
      }
    } catch (error) {
      return { receipts, error };
    }
    return { receipts, error: undefined };
  })();
  const settle = () => {
    for (const settleOne of settles.splice(0)) settleOne();
  };
  return { state, ended, settle };
}

test("a stream that is held back when the service stops takes no more of what its client has sent", async () => {
  const stopping = new AbortController();
  const reason = new Failure("service_unavailable");
  const { state, ended, settle } = unsettledStream(stopping.signal);
  await vi.waitUntil(() => state.taken === 5_000, { timeout: 45_000 });
  stopping.abort(reason);
  await vi.waitUntil(() => state.isLeft, { timeout: 45_000 });
  settle();
  expect(await ended).toEqual({ receipts: 5_000, error: reason });
  expect(state.taken).toBe(5_000);
});

test("a stream whose responses are not read any further leaves its requests, also while it is held back", async () => {
  const { signal } = new AbortController();
  const { state, ended, settle } = unsettledStream(signal, { reads: 1 });
  await vi.waitUntil(() => state.taken === 5_000, { timeout: 45_000 });
  settle();
  expect(await ended).toEqual({ receipts: 1_000, error: undefined });
  await vi.waitUntil(() => state.isLeft, { timeout: 45_000 });
  expect(state.taken).toBe(5_000);
  expect(getEventListeners(signal, "abort")).toEqual([]);
});

test("messages that are being prepared when the service stops get their receipts before the stream ends", async () => {
  const stopping = new AbortController();
  const reason = new Failure("service_unavailable");
  const prepared = Promise.withResolvers<void>();
  const stream = { groups: 1, prepared: prepared.promise };
  const { state, ended, settle } = unsettledStream(stopping.signal, stream);
  await vi.waitUntil(() => state.taken === 1_000, { timeout: 45_000 });
  stopping.abort(reason);
  // Without messages that are being prepared, the stream would end in this turn of the event loop.
  await nextTurn();
  prepared.resolve();
  await nextTurn();
  settle();
  expect(await ended).toEqual({ receipts: 1_000, error: reason });
});

test("a stream whose messages cannot be prepared ends with the reason", async () => {
  const away = new Failure("service_unavailable");
  const { ended } = unsettledStream(new AbortController().signal, {
    prepared: new Promise((_, reject) => setImmediate(reject, away)),
  });
  expect(await ended).toEqual({ receipts: 0, error: away });
});

/** Steps of promises, between which nothing else happens. */
const steps = times(8, (count) => count);

test.for(
  steps,
)("messages whose preparation ends when the service stops get their receipts, also if the stream is continued %d steps later", async (count) => {
  async function* requests() {
    for (const messageId of ["prepared", "being prepared"])
      yield create(StreamInboundMessagesRequestWireSchema, {
        messages: [create(InboundMessageWireSchema, { messageId: Buffer.from(messageId) })],
      });
    await new Promise(() => {});
  }
  const stopping = new AbortController();
  const preparation = Promise.withResolvers<void>();
  let taken = 0;
  const responses = streamInboundMessages(
    requests(),
    callOfSource,
    {
      takeMessages(messages, _call, receivers) {
        taken += messages.length;
        const submit = () => {
          for (const [index, { messageId }] of messages.entries())
            receivers[index]?.resolve({
              messageId,
              outcome: "no_match",
              verificationId: null,
              duplicate: false,
            });
        };
        if (taken > 1) return preparation.promise.then(submit);
        submit();
        return undefined;
      },
      process: { unsettled: 0 },
    },
    stopping.signal,
  )[Symbol.asyncIterator]();
  const nextReceipts = async () => {
    const { value } = await responses.next();
    return value?.receipts.map((receipt: InboundReceipt) => receipt.messageId);
  };

  expect(await nextReceipts()).toEqual(["prepared"]);
  await vi.waitUntil(() => taken === 2, { timeout: 45_000 });
  const reason = new Failure("service_unavailable");
  stopping.abort(reason);
  preparation.resolve();
  for (let step = 0; step < count; step++) await null;
  expect(await nextReceipts()).toEqual(["being prepared"]);
  await expect(responses.next()).rejects.toBe(reason);
});

test("while the streams of a process have 10,000 messages in progress together, each takes more only once it has none", async () => {
  const stopping = new AbortController();
  onTestFinished(() => stopping.abort());
  const process = { unsettled: 0 };
  const begin = (groups: number) => unsettledStream(stopping.signal, { groups, process });
  const untilTaken = ({ state }: ReturnType<typeof begin>, count: number) =>
    vi.waitUntil(() => state.taken === count, { timeout: 45_000 });
  const others = [begin(5), begin(3)] as const;
  await Promise.all([untilTaken(others[0], 5_000), untilTaken(others[1], 3_000)]);
  const last = begin(10);
  await untilTaken(last, 2_000);
  expect(process.unsettled).toBe(10_000);
  last.settle();
  await untilTaken(last, 4_000);
  // Settled messages do not count: now it may have as many as it would have alone.
  others[0].settle();
  last.settle();
  await untilTaken(last, 9_000);
  expect(process.unsettled).toBe(8_000);
});

test("a stream that begins when the service is stopping takes nothing, and ends at once", async () => {
  const reason = new Failure("service_unavailable");
  const { state, ended } = unsettledStream(AbortSignal.abort(reason));
  expect(await ended).toEqual({ receipts: 0, error: reason });
  expect(state.taken).toBe(0);
});

test("an idle stream also ends with UNAVAILABLE when the service stops", async () => {
  const stopping = await startTestService();
  const { connection, send, receipts, call } = openStream(stopping);
  await send({ to: "0200999995", text: "hello" });
  expect(await receipts(1)).toHaveLength(1);
  const closing = stopping.close();
  expect(await receipts(1)).toEqual([]);
  expect((await call.status).code).toBe(Code.Unavailable);
  connection.destroy();
  await closing;
});

test("a stream whose token is revoked ends with the next message, which has no effect", async () => {
  const secret = await service.createToken({ scope: "ingest", source: "gateway" });
  const { call, send, receipts } = openStream(service, secret);
  await send(hello("before-revocation"));
  expect(await receipts(1)).toHaveLength(1);
  const tokens = service.client(ServiceTokenService);
  const { serviceTokens } = await tokens.listServiceTokens({});
  const serviceTokenId = serviceTokens.find(({ ending }) => secret.endsWith(ending))?.id ?? "";
  await tokens.revokeServiceToken({ serviceTokenId });

  const { id, text } = await createPending(shop);
  await send({ to, text }).catch(() => {});
  call.halfClose();
  expect(await receipts(1)).toEqual([]);
  expect((await call.status).code).toBe(Code.Unauthenticated);
  expect((await shop.read(id)).body.status).toBe("pending");
});
