import http2 from "node:http2";
import { Readable } from "node:stream";
import { create, toBinary } from "@bufbuild/protobuf";
import {
  Code,
  type ConnectError,
  createClient,
  createContextValues,
  type StreamRequest,
} from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";
import { pino } from "pino";
import { describe, expect, onTestFinished, test, vi } from "vitest";
import type { Admission } from "../../src/admission/admission.ts";
import { decodeId } from "../../src/core/ids.ts";
import { Failure, type FailureCode } from "../../src/failures.ts";
import { Health, HealthCheckResponse_ServingStatus } from "../../src/gen/proto/health/v1/health_pb.ts";
import {
  InboundMessageService,
  StreamInboundMessagesRequestSchema,
} from "../../src/gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import {
  ServiceTokenScope,
  ServiceTokenService,
} from "../../src/gen/proto/phoneproof/v1/service_token_pb.ts";
import {
  VerificationService,
  WatchVerificationRequestSchema,
} from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { admissionInterceptor } from "../../src/rpc/admission-interceptor.ts";
import { admittedKey } from "../../src/rpc/call-context.ts";
import { keepOpenStreams } from "../../src/rpc/open-streams.ts";
import { startTestService } from "../harness/service.ts";
import { shortenTimers, suppressTimers } from "../harness/timers.ts";
import { scrape } from "../ops/scrape.ts";
import { untilWaiting } from "../service/barrier.ts";
import { connectPlain, leaveOutStackTraces, type PlainConnection } from "./plain-calls.ts";
import { connectRaw } from "./raw-grpc.ts";

const service = await startTestService();

/** A call with an empty message. */
const empty = { message: Buffer.of() };

/** Stops performance.now() until the end of the test, so that nothing cached for a time becomes stale. */
function freezeClock(): void {
  const clock = vi.spyOn(performance, "now").mockReturnValue(performance.now());
  onTestFinished(() => clock.mockRestore());
}

test("an unknown method is UNIMPLEMENTED and has a request id", async () => {
  const call = connectRaw(service.grpcAddress).call("phoneproof.v1.VerificationService/NoSuchMethod");
  call.halfClose();
  expect(await call.status).toEqual({ code: 12, message: "no such method" });
  expect((await call.trailers)["x-request-id"]).toMatch(/^req_/);
});

test("active streams end when their token is revoked or their project is suspended", async () => {
  const tokens = service.client(ServiceTokenService);
  const { secret, serviceToken } = await tokens.createServiceToken({
    scope: ServiceTokenScope.INGEST,
    source: "revoked",
  });
  const { projectId, liveKey, liveNumber } = await service.createProject();
  const held = connectRaw(service.grpcAddress);
  const stream = held.call("phoneproof.v1.InboundMessageService/StreamInboundMessages", {
    authorization: `Bearer ${secret}`,
  });
  const message = (messageId: string) =>
    toBinary(
      StreamInboundMessagesRequestSchema,
      create(StreamInboundMessagesRequestSchema, {
        messages: [{ messageId, from: "01087651111", to: liveNumber, text: "hello" }],
      }),
    );
  await stream.send(message("before the revocation"));
  expect(await stream.next()).toBeDefined();
  await tokens.revokeServiceToken({ serviceTokenId: serviceToken?.id ?? "" });
  await stream.send(message("after the revocation"));
  expect(await stream.next()).toBeUndefined();
  expect((await stream.status).code).toBe(Code.Unauthenticated);

  const verifications = service.client(VerificationService, liveKey);
  const { verification, destination, smsText } = await verifications.createVerification({
    idempotencyKey: "revoked-1",
  });
  const watching = verifications
    .watchVerification({ verificationId: verification?.id ?? "" })
    [Symbol.asyncIterator]();
  expect((await watching.next()).done).toBe(false);
  await service.client(ProjectService).suspendProject({ projectId });
  await service.sms({ to: destination, text: smsText });
  await expect(watching.next()).rejects.toMatchObject({ code: Code.PermissionDenied });
});

test("a message that arrives while its token is being looked up again waits for the result", async () => {
  const tokens = service.client(ServiceTokenService);
  const { secret } = await tokens.createServiceToken({
    scope: ServiceTokenScope.INGEST,
    source: "looked-up",
  });
  const held = connectRaw(service.grpcAddress);
  const stream = held.call("phoneproof.v1.InboundMessageService/StreamInboundMessages", {
    authorization: `Bearer ${secret}`,
  });
  const message = (messageId: string) =>
    toBinary(
      StreamInboundMessagesRequestSchema,
      create(StreamInboundMessagesRequestSchema, {
        messages: [{ messageId, from: "01087652222", to: "0200999999", text: "hello" }],
      }),
    );
  // So that the cached credential stays valid without another lookup.
  freezeClock();
  await stream.send(message("before the change"));
  expect(await stream.next()).toBeDefined();
  const somebody = await service.db.connect();
  try {
    await somebody.query("BEGIN; LOCK TABLE service_token IN ACCESS EXCLUSIVE MODE");
    await service.db.query("NOTIFY phoneproof_directory");
    await untilWaiting(service.db, 1);
    await stream.send(message("amid the look"));
    // A later call on the same connection has been answered, so the message has arrived.
    const later = held.call("phoneproof.v1.VerificationService/NoSuchMethod");
    later.halfClose();
    await later.status;
    await somebody.query("UPDATE service_token SET revoked_at = now() WHERE source = 'looked-up'");
    await somebody.query("COMMIT");
  } finally {
    somebody.release(true);
  }
  expect(await stream.next()).toBeUndefined();
  expect((await stream.status).code).toBe(Code.Unauthenticated);
});

test("idle streams end when their token is revoked or their project is suspended", async () => {
  const tokens = service.client(ServiceTokenService);
  const { projectId, liveKey } = await service.createProject();
  const { READ, INGEST } = ServiceTokenScope;
  const reading = await tokens.createServiceToken({ scope: READ, projectId });
  const ingesting = await tokens.createServiceToken({ scope: INGEST, source: "idle" });
  const verifications = service.client(VerificationService, liveKey);
  const { verification } = await verifications.createVerification({ idempotencyKey: "idle-streams" });
  const watch = async (token: string) => {
    const watching = service
      .client(VerificationService, token)
      .watchVerification({ verificationId: verification?.id ?? "", projectId })
      [Symbol.asyncIterator]();
    expect((await watching.next()).done).toBe(false);
    const ended = watching.next().then(
      () => undefined,
      (error: ConnectError) => error.code,
    );
    return { ended };
  };
  const [byToken, byKey] = [await watch(reading.secret), await watch(liveKey)];
  const connection = connectRaw(service.grpcAddress);
  const stream = connection.call("phoneproof.v1.InboundMessageService/StreamInboundMessages", {
    authorization: `Bearer ${ingesting.secret}`,
  });
  await stream.send(toBinary(StreamInboundMessagesRequestSchema, create(StreamInboundMessagesRequestSchema)));

  // Cached credentials stay valid until a change is announced.
  freezeClock();
  for (const { serviceToken } of [reading, ingesting]) {
    await tokens.revokeServiceToken({ serviceTokenId: serviceToken?.id ?? "" });
  }
  expect(await byToken.ended).toBe(Code.Unauthenticated);
  expect((await stream.status).code).toBe(Code.Unauthenticated);
  await service.client(ProjectService).suspendProject({ projectId });
  expect(await byKey.ended).toBe(Code.PermissionDenied);
  connection.destroy();
});

test("a revoked token ends hundreds of streams with invalid_api_key, none counted as a failed authentication", async () => {
  // Where nothing else has been counted for this address.
  const other = await service.startAnother();
  onTestFinished(() => other.close());
  const tokens = service.client(ServiceTokenService);
  const { secret, serviceToken } = await tokens.createServiceToken({
    scope: ServiceTokenScope.INGEST,
    source: "many-streams",
  });
  const held = connectRaw(other.grpcAddress);
  const path = "phoneproof.v1.InboundMessageService/StreamInboundMessages";
  // More than the failed authentications that an address may make.
  const count = 700;
  const streams = Array.from({ length: count }, () => held.call(path, { authorization: `Bearer ${secret}` }));
  await expect
    .poll(async () => (await scrape(other.opsUrl)).sum("phoneproof_rpc_streams_open", { method: path }))
    .toBe(count);
  await tokens.revokeServiceToken({ serviceTokenId: serviceToken?.id ?? "" });
  const ends = await Promise.all(streams.map(({ status }) => status));
  expect(new Set(ends.map(({ detail }) => detail?.code))).toEqual(new Set(["invalid_api_key"]));
  const later = held.call(path, { authorization: "Bearer pp_live_nobodys" });
  expect((await later.status).detail?.code).toBe("invalid_api_key");
  held.destroy();
});

test("a stream ends when its token is revoked even if the notification is lost", async () => {
  const { serviceToken, secret } = await service
    .client(ServiceTokenService)
    .createServiceToken({ scope: ServiceTokenScope.INGEST, source: "unheard" });
  const stream = connectRaw(service.grpcAddress).call(
    "phoneproof.v1.InboundMessageService/StreamInboundMessages",
    { authorization: `Bearer ${secret}` },
  );
  await stream.send(toBinary(StreamInboundMessagesRequestSchema, create(StreamInboundMessagesRequestSchema)));
  await service.db.query("UPDATE service_token SET revoked_at = now() WHERE id = $1", [
    decodeId("tok_", serviceToken?.id ?? ""),
  ]);
  expect((await stream.status).code).toBe(Code.Unauthenticated);
});

/** The caller of a stream of messages. */
const caller = {
  kind: "service",
  tokenId: null,
  scope: "ingest",
  source: "gateway",
  projectId: null,
  environment: null,
  numbers: [],
} as const;

test("the credential of each open stream is checked every second, without any notification", () => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
  onTestFinished(() => void vi.useRealTimers());
  const streams = keepOpenStreams({ onRevision: () => ({ stop: () => {} }) });
  onTestFinished(streams.close);
  const authenticate = vi.fn(async () => {});
  streams.add({ credential: "Bearer token", authenticate, end: () => {} });
  for (const checks of [1, 2]) {
    vi.advanceTimersByTime(999);
    expect(authenticate).toHaveBeenCalledTimes(checks - 1);
    vi.advanceTimersByTime(1);
    expect(authenticate).toHaveBeenCalledTimes(checks);
  }
});

test("a check that fails for want of the database ends no stream; one that finds the credential revoked ends all that have it", async () => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
  onTestFinished(() => void vi.useRealTimers());
  const streams = keepOpenStreams({ onRevision: () => ({ stop: () => {} }) });
  onTestFinished(streams.close);
  let code: FailureCode = "service_unavailable";
  const ended: string[] = [];
  for (const name of ["first", "second"]) {
    streams.add({
      credential: "Bearer token",
      authenticate: async () => {
        throw new Failure(code);
      },
      end: (failure) => ended.push(`${name}: ${failure.code}`),
    });
  }
  vi.advanceTimersByTime(1_000);
  await new Promise(setImmediate);
  expect(ended).toEqual([]);
  code = "invalid_api_key";
  vi.advanceTimersByTime(1_000);
  await new Promise(setImmediate);
  expect(ended).toEqual(["first: invalid_api_key", "second: invalid_api_key"]);
});

/** The counted refusals over gRPC, by code. */
async function refusals(): Promise<Record<string, number>> {
  const { sum } = await scrape(service.opsUrl);
  const codes = ["internal_error", "service_unavailable"];
  return Object.fromEntries(
    codes.map((code) => [code, sum("phoneproof_refusals_total", { face: "grpc", code })]),
  );
}

async function streamsEnded(code: string): Promise<number> {
  const { sum } = await scrape(service.opsUrl);
  return sum("phoneproof_rpc_streams_ended_total", { code });
}

test("a client that disconnects from a stream is not counted as refused, whatever it was receiving", async () => {
  const { liveKey, liveNumber } = await service.createProject();
  const before = await refusals();
  const endedBefore = await streamsEnded("canceled");
  const verifications = service.client(VerificationService, liveKey);
  const { verification } = await verifications.createVerification({ idempotencyKey: "a-client-that-leaves" });
  const leave = new AbortController();
  const watching = verifications
    .watchVerification({ verificationId: verification?.id ?? "" }, { signal: leave.signal })
    [Symbol.asyncIterator]();
  await watching.next();
  leave.abort();

  const left = 5;
  for (let attempt = 0; attempt < left; attempt++) {
    const connection = connectRaw(service.grpcAddress);
    const stream = connection.call("phoneproof.v1.InboundMessageService/StreamInboundMessages", {
      authorization: `Bearer ${service.adminToken}`,
    });
    const messages = Array.from({ length: 1_000 }, (_, index) => ({
      messageId: `left-${attempt}-${index}`,
      from: `010${String(87_000_000 + index).padStart(8, "0")}`,
      to: liveNumber,
      text: "hello",
    }));
    // More answers than the client's window holds, so that one is being written when it disconnects. Most are for messages that are
    // not stored, because their ids are too long.
    const invalid = Array.from({ length: 100 }, (_, index) => ({ messageId: `${index}`.padEnd(1_024, "i") }));
    for (const group of [messages, invalid, invalid, invalid]) {
      const request = create(StreamInboundMessagesRequestSchema, { messages: group });
      await stream.send(toBinary(StreamInboundMessagesRequestSchema, request));
    }
    await stream.next();
    if (attempt % 2 === 0) stream.cut();
    connection.destroy();
  }
  await expect.poll(() => streamsEnded("canceled")).toBe(endedBefore + left + 1);
  expect(await refusals()).toEqual(before);
});

const {
  NGHTTP2_NO_ERROR,
  NGHTTP2_PROTOCOL_ERROR,
  NGHTTP2_INTERNAL_ERROR,
  NGHTTP2_REFUSED_STREAM,
  NGHTTP2_CANCEL,
} = http2.constants;

describe("a client that resets its stream has cancelled it", () => {
  const path = "phoneproof.v1.InboundMessageService/StreamInboundMessages";
  const requestOf = (...messages: { messageId: string; to: string }[]) =>
    toBinary(StreamInboundMessagesRequestSchema, create(StreamInboundMessagesRequestSchema, { messages }));

  test.for([
    { name: "NO_ERROR", code: NGHTTP2_NO_ERROR },
    {
      name: "NO_ERROR within a message",
      code: NGHTTP2_NO_ERROR,
      last: Buffer.from("0000000064" + "0a", "hex"),
    },
    { name: "CANCEL", code: NGHTTP2_CANCEL },
    { name: "PROTOCOL_ERROR", code: NGHTTP2_PROTOCOL_ERROR },
    { name: "INTERNAL_ERROR", code: NGHTTP2_INTERNAL_ERROR },
    { name: "REFUSED_STREAM", code: NGHTTP2_REFUSED_STREAM },
  ])("with $name", async ({ name, code, last }) => {
    const ended = async () => {
      const { sum } = await scrape(service.opsUrl);
      const [all, canceled] = [{}, { code: "canceled" }].map((labels) =>
        sum("phoneproof_rpc_streams_ended_total", { method: path, ...labels }),
      );
      return { all, canceled };
    };
    const before = await ended();
    const refusedBefore = await refusals();
    const connection = await connectPlain(service.grpcAddress);
    const authorization = `Bearer ${service.adminToken}`;
    const message = requestOf({ messageId: `reset with ${name}`, to: "1" });
    const [stream = 0] = connection.call(1, path, { authorization }, { message, leaveOpen: true });
    await vi.waitUntil(() => connection.answered.has(stream), { timeout: 45_000 });
    connection.cut(stream, code, last);
    await expect.poll(async () => (await ended()).all).toBe((before.all ?? 0) + 1);
    expect((await ended()).canceled).toBe((before.canceled ?? 0) + 1);
    expect(await refusals()).toEqual(refusedBefore);
  });
});

/**
 * The responses to a stream that is answered with its own messages. `answered` is called at its end, and `freed` when its place is
 * free; `client` aborts when its client leaves.
 */
async function intercepted(messages: AsyncIterable<unknown>, admission: object = { isCurrent: () => true }) {
  const answered = vi.fn();
  const freed = vi.fn();
  const client = new AbortController();
  const interceptor = admissionInterceptor({
    admission: admission as Admission,
    openStreams: { add: () => freed, close: () => {} },
    log: pino({ enabled: false }),
    observer: { begun: () => {}, answered, refusedLate: () => {} },
  });
  const call = {
    requestId: "req_1",
    address: "127.0.0.1",
    caller,
    usage: undefined,
    verificationId: undefined,
    projectId: undefined,
    violations: [],
  };
  const checkpoint = { at: performance.now(), revision: 0 };
  const method = InboundMessageService.method.streamInboundMessages;
  const request = {
    stream: true,
    method,
    message: messages,
    signal: client.signal,
    header: new Headers(),
    contextValues: createContextValues().set(admittedKey, {
      call,
      rateLimit: undefined,
      checkpoint,
      since: 0,
    }),
  } as unknown as StreamRequest;
  const response = await interceptor(async (entered) => ({
    stream: true,
    service: method.parent,
    method,
    header: new Headers(),
    trailer: new Headers(),
    message: entered.message as AsyncIterable<never>,
  }))(request);
  return { answered, freed, client, responses: response.message as AsyncIterable<unknown> };
}

test("a stream whose client leaves frees its place at once, even if its answer is still waited for", async () => {
  const { freed, client, responses } = await intercepted(Readable.from(neverAnything()));
  void responses[Symbol.asyncIterator]().next();
  expect(freed).not.toHaveBeenCalled();
  client.abort();
  expect(freed).toHaveBeenCalledOnce();
});

async function* neverAnything() {
  yield await new Promise(() => {});
}

test("a change of a stream's credential while it is being looked up again is not taken for known", async () => {
  const changed = { ...caller, source: "changed" };
  let revision = 0;
  let looks = 0;
  let callerAtEnd: object | undefined;
  const requests = Readable.from([1, 2]);
  const { answered, responses } = await intercepted(requests, {
    checkpoint: () => ({ at: 0, revision }),
    isCurrent: (checkpoint: { revision: number }) => checkpoint.revision === revision,
    async authenticate() {
      looks += 1;
      if (looks > 1) throw new Failure("invalid_api_key");
      revision += 1;
      return changed;
    },
    async chargeFailure(call: { caller: object }, failure: Failure) {
      callerAtEnd = call.caller;
      return failure;
    },
  });
  revision += 1;
  await expect(Array.fromAsync(responses)).rejects.toMatchObject({ code: Code.Unauthenticated });
  expect(answered).toHaveBeenCalledExactlyOnceWith(expect.objectContaining({ code: "invalid_api_key" }));
  expect(callerAtEnd).toBe(changed);
  expect(requests.destroyed).toBe(true);
});

/** Whether Node reports this error depends on how much of the request it has read by then: no client can cause it at will. */
test("a request that Node finds cut short counts as canceled, not as a fault", async () => {
  const cutShort = Readable.from([], { objectMode: true }).destroy() as AsyncIterable<never>;
  const { answered, responses } = await intercepted(cutShort);
  await expect(Array.fromAsync(responses)).rejects.toMatchObject({ code: Code.Canceled });
  expect(answered).toHaveBeenCalledExactlyOnceWith(expect.objectContaining({ code: "canceled" }));
});

test("a stream whose responses are not read any further, without an error, counts as canceled", async () => {
  const requests = Readable.from([1, 2, 3]);
  const { answered, responses } = await intercepted(requests);
  for await (const response of responses) {
    expect(response).toBe(1);
    expect(answered).not.toHaveBeenCalled();
    break;
  }
  expect(answered).toHaveBeenCalledExactlyOnceWith(expect.objectContaining({ code: "canceled" }));
  // Its requests are not read any further, either.
  expect(requests.destroyed).toBe(true);
});

test.for([
  "disconnects",
  "cancels its streams",
])("a client that %s while it is held back for unread receipts is not counted as refused", async (way) => {
  const before = await refusals();
  const endedBefore = await streamsEnded("canceled");
  const streams = 10;
  const connection = connectRaw(service.grpcAddress, { windowBytes: 0 });
  const messages = Array.from({ length: 1_000 }, () => ({ to: "1" }));
  const request = toBinary(
    StreamInboundMessagesRequestSchema,
    create(StreamInboundMessagesRequestSchema, { messages }),
  );
  const taken = async () => (await scrape(service.opsUrl)).sum("phoneproof_inbound_messages_total");
  const takenBefore = await taken();
  const calls = Array.from({ length: streams }, () => {
    const stream = connection.call("phoneproof.v1.InboundMessageService/StreamInboundMessages", {
      authorization: `Bearer ${service.adminToken}`,
    });
    for (let group = 0; group < 10; group++) stream.send(request).catch(() => {});
    return stream;
  });
  // As many messages as a stream may send without reading receipts.
  await expect.poll(taken).toBeGreaterThanOrEqual(takenBefore + streams * 5_000);
  if (way === "disconnects") connection.destroy();
  else for (const call of calls) call.cut();
  await expect.poll(() => streamsEnded("canceled")).toBe(endedBefore + streams);
  expect(await refusals()).toEqual(before);
  connection.destroy();
});

test("an unreadable message is refused with the catalogue's code, in a unary call and on a stream", async () => {
  const connection = connectRaw(service.grpcAddress);
  const authorization = `Bearer ${service.adminToken}`;
  const refused = async (method: string, message: Uint8Array) => {
    const call = connection.call(`phoneproof.v1.${method}`, { authorization });
    // It may be refused before all of it has been sent.
    call.send(message).catch(() => {});
    call.halfClose();
    await call.next();
    const { code, detail } = await call.status;
    return { code, detail: detail?.code };
  };
  const broken = Buffer.from("0aff", "hex");
  const bounds = [
    ["VerificationService/ListVerifications", 64 * 1024],
    ["InboundMessageService/StreamInboundMessages", 8 * 2 ** 20],
  ] as const;
  for (const [method, bound] of bounds) {
    expect(await refused(method, broken)).toEqual({
      code: Code.InvalidArgument,
      detail: "malformed_request",
    });
    expect(await refused(method, Buffer.alloc(bound + 1))).toEqual({
      code: Code.InvalidArgument,
      detail: "body_too_large",
    });
  }
  connection.destroy();
});

test("JSON that a refusal cannot quote is refused without console output", async () => {
  const printed = vi.spyOn(console, "error");
  onTestFinished(() => printed.mockRestore());
  const connection = connectRaw(service.grpcAddress);
  const { liveKey } = await service.createProject();
  const refused = async (path: string, headers: Record<string, string>, message: string) => {
    const call = connection.call(path, { authorization: `Bearer ${liveKey}`, ...headers });
    call.send(Buffer.from(message)).catch(() => {});
    call.halfClose();
    return (await call.status).code;
  };
  // A lone surrogate, which Connect quotes in its refusal and cannot encode.
  const broken = JSON.stringify({ "\ud800": 1 });
  for (const path of [
    "grpc.health.v1.Health/Check",
    "grpc.health.v1.Health/Watch",
    "phoneproof.v1.VerificationService/GetVerification",
    "phoneproof.v1.VerificationService/WatchVerification",
  ]) {
    const json = { "content-type": "application/grpc+json" };
    expect(await refused(path, json, broken), path).toBe(Code.InvalidArgument);
  }
  connection.destroy();
  expect(printed).not.toHaveBeenCalled();
});

test.for([
  { name: "an unfinished stream", method: "InboundMessageService/StreamInboundMessages" },
  { name: "an unfinished call", method: "ProjectService/ListProjects" },
])("a connection may send 64 KiB ahead, and from the valid credential of $name on 4 MiB", async ({
  method,
}) => {
  const connection = http2.connect(`http://${service.grpcAddress}`);
  onTestFinished(() => connection.destroy());
  const headers = { ":method": "POST", "content-type": "application/grpc" };
  const mayBeSent = () => connection.state.remoteWindowSize;
  // What an answer to a ping comes after has arrived.
  const arrived = () => new Promise((resolve) => connection.ping(resolve));
  const call = (path: string, authorization?: string) => {
    const stream = connection.request({ ...headers, ":path": path, ...(authorization && { authorization }) });
    return stream.on("error", () => {}).resume();
  };

  for (const [path, authorization] of [
    ["/none/Such"],
    [`/phoneproof.v1.${method}`],
    [`/phoneproof.v1.${method}`, "Bearer pp_svc_nobodys"],
  ] as const) {
    const refused = call(path, authorization);
    await new Promise((resolve) => refused.on("response", resolve));
    await arrived();
    expect(mayBeSent()).toBeLessThan(64 * 1024);
  }
  call(`/phoneproof.v1.${method}`, `Bearer ${service.adminToken}`);
  await expect.poll(mayBeSent).toBe(4 * 1024 * 1024);
});

test("unauthenticated streams are limited to 500 in a process, and those that end free their places", async () => {
  const connection = connectRaw(service.grpcAddress);
  const watchers = Array.from({ length: 600 }, (_, index) => {
    // No credential is asked for there, so none makes a stream an authenticated one.
    const credential = index % 2 === 0 ? {} : { authorization: `Bearer ${service.adminToken}` };
    const call = connection.call("grpc.health.v1.Health/Watch", credential);
    call.send(Buffer.of());
    call.halfClose();
    return call;
  });
  const ending = watchers.map(async (call) => {
    if ((await call.next()) !== undefined) return "status";
    return (await call.status).code;
  });
  const answers = await Promise.all(ending);
  expect(answers.filter((answer) => answer === "status")).toHaveLength(500);
  expect(answers.filter((answer) => answer === Code.ResourceExhausted)).toHaveLength(100);
  connection.destroy();
  // Those that have ended free their places.
  const health = createClient(Health, createGrpcTransport({ baseUrl: `http://${service.grpcAddress}` }));
  await expect
    .poll(async () => {
      const leave = new AbortController();
      const [first] = await Array.fromAsync(once(health.watch({}, { signal: leave.signal }))).catch(() => []);
      leave.abort();
      return first?.status;
    })
    .toBe(HealthCheckResponse_ServingStatus.SERVING);
});

test("an IPv6 host with a different address for each stream also gets at most 500 unauthenticated ones, and all hosts 1000", async () => {
  const api = await service.startAnother({ ROLES: "api", TRUSTED_PROXIES: "127.0.0.1" });
  const answeredFrom = async (network: string) => {
    const connection = await connectPlain(api.grpcAddress);
    for (let host = 0; host < 600; host++) {
      const address = `${network}::${host.toString(16)}`;
      connection.call(1, "grpc.health.v1.Health/Watch", { "x-forwarded-for": address }, empty);
    }
    await expect.poll(() => connection.answered.size + connection.ended.size).toBe(600);
    return connection.answered.size;
  };
  expect(await answeredFrom("2001:db8:1")).toBe(500);
  expect(await answeredFrom("2001:db8:2")).toBe(500);
  expect(await answeredFrom("2001:db8:3")).toBe(0);
});

test("a client on an interface of any name is answered", async () => {
  const api = await service.startAnother({ ROLES: "api", TRUSTED_PROXIES: "127.0.0.1" });
  const { liveKey } = await service.createProject();
  const connection = connectRaw(api.grpcAddress);
  onTestFinished(() => connection.destroy());
  for (const zone of ["eth0", "eth0.100", "br-lan"]) {
    const call = connection.call("phoneproof.v1.VerificationService/GetVerification", {
      authorization: `Bearer ${liveKey}`,
      "x-forwarded-for": `fe80::1%${zone}`,
    });
    call.send(Buffer.of());
    call.halfClose();
    expect((await call.status).code).toBe(Code.NotFound);
  }
});

test("unauthenticated clients that do not read their refusals do not use up other clients' calls", async () => {
  leaveOutStackTraces();
  const api = await service.startAnother({ ROLES: "api", TRUSTED_PROXIES: "127.0.0.1" });
  const { liveKey } = await service.createProject();
  const path = "phoneproof.v1.VerificationService/GetVerification";
  for (let number = 0; number < 8; number++) {
    const connection = await connectPlain(api.grpcAddress, { windowBytes: 0 });
    const refused = {
      "x-forwarded-for": `192.0.2.${number}`,
      "content-type": "text/plain",
      authorization: "Bearer none",
    };
    connection.call(900, path, refused, empty);
    // A call behind them on the same connection is answered once they have been.
    await connection.untilEnded(connection.call(1, "none"));
  }
  const asking = connectRaw(api.grpcAddress);
  const call = asking.call(path, { authorization: `Bearer ${liveKey}`, "x-forwarded-for": "192.0.2.100" });
  call.send(Buffer.of());
  call.halfClose();
  expect((await call.status).code).toBe(Code.NotFound);
  asking.destroy();
});

test("the complete response of a stream that its client does not take is given up after ten seconds", async () => {
  const { liveKey } = await service.createProject();
  const verifications = service.client(VerificationService, liveKey);
  const { verification } = await verifications.createVerification({ idempotencyKey: "not-taken" });
  const verificationId = verification?.id ?? "";
  await verifications.cancelVerification({ verificationId });
  const connection = await connectPlain(service.grpcAddress, { windowBytes: 0 });
  shortenTimers(10_000);
  const watch = connection.call(
    1,
    "phoneproof.v1.VerificationService/WatchVerification",
    { authorization: `Bearer ${liveKey}` },
    {
      message: toBinary(
        WatchVerificationRequestSchema,
        create(WatchVerificationRequestSchema, { verificationId }),
      ),
    },
  );
  await connection.untilEnded(watch);
  expect(connection.answered.size).toBe(0);
});

test("unread refusals are limited to 500 even on a connection with a valid credential", async () => {
  // However long it takes to make all of them, the time limit of responses must not end them.
  suppressTimers(10_000);
  const { liveKey } = await service.createProject();
  const path = "phoneproof.v1.VerificationService/GetVerification";
  const watchPath = "phoneproof.v1.VerificationService/WatchVerification";
  for (const [refusedPath, type, authorization] of [
    [path, "text/plain", `Bearer ${liveKey}`],
    [path, "application/json", "Bearer none"],
    // Its refusal is a message of the stream, which is written before the response ends.
    [watchPath, "application/connect+json", "Bearer none"],
  ] as const) {
    const connection = await connectPlain(service.grpcAddress, { windowBytes: 0 });
    await connection.untilEnded(connection.call(1, path, { authorization: `Bearer ${liveKey}` }, empty));
    const { ended } = connection;
    connection.call(600, refusedPath, { "content-type": type, authorization }, empty);
    await expect.poll(() => ended.size - 1).toBe(100);
    connection.destroy();
  }
});

test.for([
  { name: "rate-limited calls", path: "GetVerification", type: "application/json" },
  { name: "rate-limited streams", path: "WatchVerification", type: "application/connect+json" },
  {
    name: "streams that their handler refuses",
    path: "WatchVerification",
    type: "application/connect+json",
    scope: ServiceTokenScope.READ,
  },
])("unread refusals of $name are bounded, too", async ({ path, type, scope }) => {
  suppressTimers(10_000);
  freezeClock();
  leaveOutStackTraces();
  const { liveKey } = await service.createProject({ rateLimitPerMinute: 1 });
  const token = scope && (await service.client(ServiceTokenService).createServiceToken({ scope }));
  const authorization = `Bearer ${token?.secret ?? liveKey}`;
  const headers = { authorization, "content-type": type };
  // Of an empty message, in JSON.
  const more = scope === undefined ? { leaveOpen: true } : { message: Buffer.from("{}") };
  const kept = 2_500 + 500;
  const connections: PlainConnection[] = [];
  // Those of a connection may be refused while the next one's are.
  const ended = () => connections.reduce((sum, connection) => sum + connection.ended.size - 1, 0);
  for (let number = 0; number < 4; number++) {
    const connection = await connectPlain(service.grpcAddress, { windowBytes: 0 });
    // With a credential that is known to be valid there, its calls are not counted while that is looked up.
    const unary = "phoneproof.v1.VerificationService/GetVerification";
    await connection.untilEnded(connection.call(1, unary, { authorization }, empty));
    connection.call(900, `phoneproof.v1.VerificationService/${path}`, headers, more);
    connections.push(connection);
    await expect.poll(ended, { timeout: 45_000 }).toBe(Math.max(0, 900 * (number + 1) - kept));
  }
});

test("a caller has at most 2500 unary calls open in a process, and those that end free their places", async () => {
  // However long it takes to open all of them, none must time out, and the key must not be looked up again: on a busy machine
  // there may be no database connection for that in time.
  suppressTimers(10_000);
  freezeClock();
  const { liveKey } = await service.createProject();
  const path = "phoneproof.v1.VerificationService/GetVerification";
  const authorization = `Bearer ${liveKey}`;
  const rateLimited = async () =>
    (await scrape(service.opsUrl)).sum("phoneproof_refusals_total", { face: "grpc", code: "rate_limited" });
  const before = await rateLimited();
  const connections = await Promise.all([1, 2, 3].map(() => connectPlain(service.grpcAddress)));
  // Connections on which a credential was valid: there are fewer places for unauthenticated calls.
  for (const connection of connections) {
    await connection.untilEnded(connection.call(1, path, { authorization }, empty));
  }
  const [waiting = 0] = connections.flatMap((connection) =>
    connection.call(900, path, { authorization }, { leaveOpen: true }),
  );
  const ended = () => connections.reduce((sum, connection) => sum + connection.ended.size - 1, 0);
  await expect.poll(ended).toBe(200);
  expect(await rateLimited()).toBe(before + 200);
  let policy: unknown;
  const asking = connectRaw(service.grpcAddress);
  const ask = async () => {
    const call = asking.call(path, { authorization });
    call.halfClose();
    policy = (await call.trailers)["ratelimit-policy"];
    return (await call.status).detail?.code;
  };
  expect(await ask()).toBe("rate_limited");
  // It counts for the rate limit, whose state it is answered with.
  expect(policy).toBe('"read";q=6000;w=60');
  // Other callers have places of their own, and a stream is not counted with the unary calls.
  const another = asking.call(path, { authorization: `Bearer ${service.adminToken}` });
  another.halfClose();
  expect((await another.status).code).toBe(Code.Unimplemented);
  const watch = asking.call("phoneproof.v1.VerificationService/WatchVerification", { authorization });
  await watch.send(Buffer.of());
  watch.halfClose();
  expect((await watch.status).detail?.code).toBe("verification_not_found");
  connections[0]?.cut(waiting);
  await expect.poll(ask).toBeUndefined();
  for (const connection of [asking, ...connections]) connection.destroy();
});

test("unauthenticated calls with an expired deadline do not use up the streams of others", async () => {
  const plain = await connectPlain(service.grpcAddress);
  // A few at a time, so that they do not use up the streams while they are open.
  for (let calls = 0; calls < 600; calls += 50) {
    const late = plain.call(50, "grpc.health.v1.Health/Watch", { "grpc-timeout": "0m" }, empty);
    await plain.untilEnded(late);
  }
  const connection = connectRaw(service.grpcAddress);
  const watch = connection.call("grpc.health.v1.Health/Watch");
  watch.send(Buffer.of());
  watch.halfClose();
  expect(await watch.next()).toBeDefined();
  connection.destroy();
});

async function* once<T>(values: AsyncIterable<T>): AsyncIterable<T> {
  for await (const value of values) {
    yield value;
    return;
  }
}
