/** Calls with a valid credential and an unreadable message: the same rules as for an unreadable body over REST. */
import { once } from "node:events";
import net from "node:net";
import { gzipSync } from "node:zlib";
import { create, toBinary } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { afterAll, expect, onTestFinished, test, vi } from "vitest";
import { InboundMessageService } from "../../src/gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import {
  GetVerificationRequestSchema,
  VerificationService,
} from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { merchant, usageOf } from "../gateway/merchant.ts";
import { startTestService } from "../harness/service.ts";
import { shortenTimers, suppressTimers } from "../harness/timers.ts";
import { scrape } from "../ops/scrape.ts";
import { endHeaders, frame, headerBlock, preface } from "../security/http2-frames.ts";
import { untilWaiting } from "../service/barrier.ts";
import { connectRaw, type RawCall } from "./raw-grpc.ts";

const service = await startTestService({ ROLES: "api" });
const readToken = await service.createToken({ scope: "read" });
const connection = connectRaw(service.grpcAddress);
afterAll(() => connection.destroy());

const { createVerification, getVerification, watchVerification } = VerificationService.method;
const pathOf = (name: string) => `${VerificationService.typeName}/${name}`;
const open = (
  apiKey: string,
  headers: Record<string, string> = {},
  name = getVerification.name,
  over = connection,
) => over.call(pathOf(name), { authorization: `Bearer ${apiKey}`, ...headers });

const sound = toBinary(
  GetVerificationRequestSchema,
  create(GetVerificationRequestSchema, { verificationId: "vrf_none" }),
);
const broken = Buffer.from("0aff", "hex");

async function toldOf(call: RawCall) {
  await call.next();
  const { code, detail, message } = await call.status;
  const trailers = await call.trailers;
  const usage = trailers["x-usage-calls"] && `${trailers["x-usage-calls"]}/${trailers["x-usage-limit"]}`;
  return {
    status: code,
    code: detail?.code,
    message,
    usage,
    policy: trailers["ratelimit-policy"],
    allowance: trailers.ratelimit,
    requestId: trailers["x-request-id"],
    detail,
    retryAfter: trailers["retry-after"],
  };
}

const malformed = { status: Code.InvalidArgument, code: "malformed_request" };
const tooLarge = { status: Code.InvalidArgument, code: "body_too_large" };
/** gRPC's own refusal, without a code of the catalogue. */
const unimplemented = { status: Code.Unimplemented, code: undefined };

interface Unread {
  readonly what: string;
  readonly headers?: Record<string, string>;
  readonly body: (call: RawCall) => void;
  readonly expected: { status: Code; code: string | undefined; message?: unknown };
}

test.for<Unread>([
  { what: "a message that is not protobuf", body: (call) => void call.send(broken), expected: malformed },
  {
    what: "a message over the size limit",
    body: (call) => void call.send(Buffer.alloc(64 * 1024 + 1)).catch(() => {}),
    expected: tooLarge,
  },
  {
    what: "a message over the size limit once decompressed",
    headers: { "grpc-encoding": "gzip" },
    body: (call) => void call.send(gzipSync(Buffer.alloc(64 * 1024 + 1)), true),
    expected: tooLarge,
  },
  {
    what: "a message that is not compressed as declared",
    headers: { "grpc-encoding": "gzip" },
    body: (call) => void call.send(sound, true),
    expected: malformed,
  },
  {
    what: "a compressed message without a declared compression",
    body: (call) => void call.send(sound, true),
    expected: malformed,
  },
  {
    what: "a message in an unknown compression",
    headers: { "grpc-encoding": "snappy" },
    body: (call) => void call.send(sound, true),
    expected: unimplemented,
  },
  {
    what: "half a message",
    body: (call) => call.write(Buffer.from("000000000a0a", "hex")),
    expected: malformed,
  },
  { what: "no message", body: () => {}, expected: unimplemented },
  {
    what: "two messages",
    body: (call) => {
      void call.send(sound);
      void call.send(sound);
    },
    expected: unimplemented,
  },
  {
    what: "a message with an invalid timeout",
    headers: { "grpc-timeout": "soon" },
    body: (call) => void call.send(sound),
    expected: { ...malformed, message: expect.stringContaining("timeout is invalid") },
  },
])("$what is refused, counted and charged to the rate limit, like an unreadable body over REST", async ({
  headers,
  body,
  expected,
}) => {
  const { liveKey } = await service.createProject({ rateLimitPerMinute: 10 });
  const shop = merchant(service.httpUrl, liveKey);
  expect(usageOf(await shop.read("vrf_none"))).toBe("1/unlimited");
  const charged = async () => (await scrape(service.opsUrl)).sum("phoneproof_usage_calls_total");
  const chargedBefore = await charged();

  const call = open(liveKey, headers);
  body(call);
  call.halfClose();
  const answer = await toldOf(call);
  expect(answer).toMatchObject({ ...expected, usage: "2/unlimited", policy: '"read";q=10;w=60' });
  expect(answer.allowance).toMatch(/^"read";r=8;t=\d+$/);
  expect(answer.requestId).toMatch(/^req_[0-9a-z]{26}$/);
  if (answer.detail) expect(answer.detail.requestId).toBe(answer.requestId);

  expect(await charged()).toBe(chargedBefore + 1);
  expect(usageOf(await shop.create("{"))).toBe("3/unlimited");
  expect((await shop.read("vrf_none")).headers.get("ratelimit")).toMatch(/^"read";r=7;/);
});

test.for([0, 2])("a watch with %i messages is counted, as a unary call is", async (messages) => {
  const { liveKey } = await service.createProject({ rateLimitPerMinute: 10 });
  const call = open(liveKey, {}, watchVerification.name);
  for (let sent = 0; sent < messages; sent++) void call.send(sound);
  call.halfClose();
  const answer = await toldOf(call);
  expect(answer).toMatchObject({ ...unimplemented, usage: "1/unlimited", policy: '"read";q=10;w=60' });
  expect(answer.requestId).toMatch(/^req_[0-9a-z]{26}$/);
  expect(usageOf(await merchant(service.httpUrl, liveKey).read("vrf_none"))).toBe("2/unlimited");

  const { testKey } = await service.createProject({ usageLimit: 1n });
  for (const code of [undefined, "usage_limit_exceeded"]) {
    const limited = open(testKey, {}, watchVerification.name);
    for (let sent = 0; sent < messages; sent++) void limited.send(sound);
    limited.halfClose();
    expect((await limited.status).detail?.code).toBe(code);
  }
});

test.for([
  { what: "nothing", bytes: "" },
  { what: "half a message", bytes: "000000000a0a" },
  {
    what: "a message but not the end of the call",
    bytes: `000000000a0a08${Buffer.from("vrf_none").toString("hex")}`,
  },
])("a call that has sent $what within ten seconds is refused, counted and closed", async ({ bytes }) => {
  // They pass below: a call that has not been read by then is reset without a status.
  suppressTimers(10_000);
  const { liveKey } = await service.createProject();
  const timers = vi.mocked(setTimeout).mock.calls;
  const before = timers.length;
  const calls = [
    ...[getVerification.name, watchVerification.name].map((name) => open(liveKey, {}, name)),
    // A longer deadline of its own gives it no more time.
    open(liveKey, { "grpc-timeout": "60S" }),
  ];
  for (const call of calls) call.write(Buffer.from(bytes, "hex"));
  // Answered once the key was looked up: those before it are being read.
  const later = open(liveKey);
  void later.send(sound);
  later.halfClose();
  expect((await later.status).code).toBe(Code.NotFound);
  const timed = timers.slice(before).filter(([, delay]) => delay === 10_000);
  for (const [act] of timed.slice(0, calls.length)) act();
  for (const call of calls) {
    const answer = await toldOf(call);
    expect(answer).toMatchObject(malformed);
    expect(answer.detail?.requestId).toBe(answer.requestId);
    await call.closed;
  }
  expect(usageOf(await merchant(service.httpUrl, liveKey).read("vrf_none"))).toBe("5/unlimited");
});

test("a stream of inbound messages may be silent for longer than a message may take", async () => {
  const { liveKey } = await service.createProject();
  shortenTimers(10_000);
  const stream = connection.call(`${InboundMessageService.typeName}/StreamInboundMessages`, {
    authorization: `Bearer ${service.adminToken}`,
  });
  // Opened later, so the stream has been open for as long once this is closed.
  const call = open(liveKey);
  call.write(Buffer.from("000000000a0a", "hex"));
  await call.closed;
  stream.halfClose();
  expect((await stream.status).code).toBe(0);
});

test("a call whose message is overdue is closed even while its key is being looked up", async () => {
  const { liveKey } = await service.createProject();
  shortenTimers(10_000);
  const holder = await service.db.connect();
  try {
    await holder.query("BEGIN; LOCK TABLE api_key");
    const call = open(liveKey);
    call.write(Buffer.from("000000000a0a", "hex"));
    await call.closed;
    // No refusal: nobody has been authenticated.
    expect((await call.status).code).toBe(-1);
    await untilWaiting(service.db, 1);
  } finally {
    await holder.query("ROLLBACK");
    holder.release();
  }
});

test.for([
  { what: "nothing", bytes: "" },
  { what: "half a message", bytes: "000000000a0a" },
])("a call that has sent $what by its own deadline gets DEADLINE_EXCEEDED, is closed and not counted", async ({
  bytes,
}) => {
  // Without these timers, which would otherwise refuse and close the call.
  suppressTimers(10_000);
  const { liveKey } = await service.createProject();
  for (const timeout of ["0m", "50000u", "200m"]) {
    const call = open(liveKey, { "grpc-timeout": timeout });
    call.write(Buffer.from(bytes, "hex"));
    expect(await toldOf(call)).toMatchObject({
      status: Code.DeadlineExceeded,
      code: undefined,
      usage: undefined,
    });
    await call.closed;
  }
  const health = connection.call("grpc.health.v1.Health/Check", { "grpc-timeout": "200m" });
  await health.next();
  expect((await health.status).code).toBe(Code.DeadlineExceeded);
  expect(usageOf(await merchant(service.httpUrl, liveKey).read("vrf_none"))).toBe("1/unlimited");
});

test.for([
  { what: "a read", path: pathOf(getVerification.name), bytes: 180_000 },
  { what: "a watch", path: pathOf(watchVerification.name), bytes: 900_000 },
  {
    what: "an inbound stream",
    path: `${InboundMessageService.typeName}/StreamInboundMessages`,
    bytes: 9_000_000,
  },
  { what: "a health check", path: "grpc.health.v1.Health/Check", bytes: 900_000 },
])("$what whose message is far too large is closed once it is refused, and its connection can be closed", async ({
  path,
  bytes,
}) => {
  const own = connectRaw(service.grpcAddress);
  const call = own.call(path, { authorization: `Bearer ${service.adminToken}` });
  call.send(Buffer.alloc(bytes)).catch(() => {});
  call.halfClose();
  await call.next();
  expect((await call.status).code).not.toBe(Code.Unavailable);
  await call.closed;
  await own.close();
});

test("a refused call whose client does not end its side is closed ten seconds later", async () => {
  shortenTimers(10_000);
  const call = open(service.adminToken);
  call.send(Buffer.alloc(180_000)).catch(() => {});
  expect(await toldOf(call)).toMatchObject(tooLarge);
  await call.closed;
});

test.for([
  { what: "that has no valid credential", name: getVerification.name, key: () => "pp_live_nobodys" },
  { what: "whose caller may not make it", name: createVerification.name, key: () => readToken },
])("a call $what is closed once it is refused, although its client does not end its side", async ({
  name,
  key,
}) => {
  // Without the time limit of a response, which would otherwise close the call.
  suppressTimers(10_000);
  const call = open(key(), {}, name);
  await call.next();
  expect((await call.status).detail).toBeDefined();
  await call.closed;
});

test("a health check without a message times out with INVALID_ARGUMENT, without a code of the catalogue", async () => {
  shortenTimers(10_000);
  const call = connection.call("grpc.health.v1.Health/Check");
  await call.next();
  expect(await call.status).toMatchObject({ code: Code.InvalidArgument, detail: undefined });
  await call.closed;
});

test("a call beyond the rate limit is refused before its message arrives, and is not counted", async () => {
  const { liveKey } = await service.createProject({ rateLimitPerMinute: 2 });
  for (const usage of ["1/unlimited", "2/unlimited"]) {
    const call = open(liveKey, {}, createVerification.name);
    void call.send(broken);
    call.halfClose();
    expect(await toldOf(call)).toMatchObject({ ...malformed, usage, policy: '"create";q=2;w=60' });
  }
  const beyond = await toldOf(open(liveKey, {}, createVerification.name));
  expect(beyond).toMatchObject({
    status: Code.ResourceExhausted,
    code: "rate_limited",
    usage: undefined,
    policy: '"create";q=2;w=60',
  });
  expect(Number(beyond.retryAfter)).toBeGreaterThanOrEqual(1);
  // Each kind of call has a rate limit of its own, which REST and gRPC share.
  const shop = merchant(service.httpUrl, liveKey);
  expect((await shop.create()).body.error.code).toBe("rate_limited");
  expect(usageOf(await shop.read("vrf_none"))).toBe("3/unlimited");
});

test.for([
  { what: "is unreadable", messages: [broken], within: malformed },
  { what: "is missing, which gRPC has a refusal of its own for", messages: [], within: unimplemented },
])("a call beyond the usage limit is refused for that, even if its message $what", async ({
  messages,
  within,
}) => {
  const { liveKey } = await service.createProject({ usageLimit: 1n });
  const ask = async () => {
    const call = open(liveKey);
    for (const message of messages) void call.send(message);
    call.halfClose();
    return toldOf(call);
  };
  expect(await ask()).toMatchObject({ ...within, usage: "1/1" });
  const beyond = await ask();
  expect(beyond).toMatchObject({
    status: Code.ResourceExhausted,
    code: "usage_limit_exceeded",
    usage: undefined,
    policy: '"read";q=6000;w=60',
  });
  expect(Number(beyond.retryAfter)).toBeGreaterThanOrEqual(1);
});

test("a client that disconnects before its message is complete is not charged, nor is a service token", async () => {
  const { liveKey } = await service.createProject();
  const canceled = async () =>
    (await scrape(service.opsUrl)).sum("phoneproof_rpc_duration_seconds_count", { code: "canceled" });
  const before = await canceled();
  const away = connectRaw(service.grpcAddress);
  const left = open(liveKey, {}, getVerification.name, away);
  left.write(Buffer.from("000000000a0a", "hex"));
  const later = open(liveKey, {}, getVerification.name, away);
  void later.send(sound);
  later.halfClose();
  expect((await later.status).code).toBe(Code.NotFound);
  away.destroy();
  await expect.poll(canceled).toBe(before + 1);

  const byService = open(service.adminToken);
  void byService.send(broken);
  byService.halfClose();
  expect(await toldOf(byService)).toMatchObject({ ...malformed, usage: undefined, policy: undefined });
  const shop = merchant(service.httpUrl, liveKey);
  expect(usageOf(await shop.read("vrf_none"))).toBe("2/unlimited");
});

test("an unreadable call that cannot be charged gets service_unavailable", async () => {
  const { liveKey } = await service.createProject();
  await merchant(service.httpUrl, liveKey).read("vrf_none");
  const lock = await service.db.connect();
  const call = open(liveKey);
  try {
    await lock.query("BEGIN; LOCK TABLE usage");
    void call.send(broken);
    call.halfClose();
    await untilWaiting(service.db, 1);
    await lock.query(
      "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
    );
  } finally {
    await lock.query("ROLLBACK");
    lock.release();
  }
  const answer = await toldOf(call);
  expect([answer.code, answer.usage]).toEqual(["service_unavailable", undefined]);
});

test("a credential that is no longer valid when the message arrives is refused", async () => {
  const { projectId, liveKey } = await service.createProject();
  const call = open(liveKey);
  const other = open(liveKey);
  void other.send(sound);
  other.halfClose();
  expect(await toldOf(other)).toMatchObject({ code: "verification_not_found", usage: "1/unlimited" });
  await service.client(ProjectService).suspendProject({ projectId });
  void call.send(sound);
  call.halfClose();
  expect(await toldOf(call)).toMatchObject({ code: "project_suspended", usage: undefined });
});

test("a connection is closed after some twenty requests that are no HTTP/2", async () => {
  const [host, port] = service.grpcAddress.split(":");
  const client = net.connect(Number(port), host);
  onTestFinished(() => void client.destroy());
  client.on("error", () => {}).resume();
  const closed = once(client, "close");
  const requests = Array.from({ length: 30 }, (_, index) =>
    frame("headers", endHeaders, 2 * index + 1, headerBlock({ ":method": "POST", "Not-Lower-Case": "x" })),
  );
  client.write(Buffer.concat([preface, ...requests]));
  await closed;
});
