import { execFileSync } from "node:child_process";
import { once } from "node:events";
import { createServer, type ServerResponse } from "node:http";
import net, { type AddressInfo } from "node:net";
import path from "node:path";
import { setTimeout as delay, setImmediate } from "node:timers/promises";
import { create, toBinary } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { afterAll, expect, onTestFinished, test, vi } from "vitest";
import { parseConfig } from "../../src/config.ts";
import { newCredential } from "../../src/core/credential.ts";
import { decodeId } from "../../src/core/ids.ts";
import { StreamInboundMessagesRequestSchema } from "../../src/gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { VerificationService } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { openTracing } from "../../src/tracing/open-telemetry.ts";
import { version } from "../../src/version.ts";
import { merchant } from "../gateway/merchant.ts";
import { exchange } from "../gateway/raw-http.ts";
import { startCuttableProxy } from "../harness/cuttable-proxy.ts";
import { startTestService } from "../harness/service.ts";
import { scrape } from "../ops/scrape.ts";
import { startProcess } from "../ops/service-process.ts";
import { answerOf } from "../rpc/grpc-answer.ts";
import { connectRaw } from "../rpc/raw-grpc.ts";
import { untilWaiting } from "../service/barrier.ts";
import { refuseForLong, startReceiver } from "../webhooks/receiver.ts";
import { attempted, deliveryWhen, openShop } from "../webhooks/shop.ts";
import { type CollectedSpan, startCollector } from "./collector.ts";

const collector = await startCollector();
// The exporter reads the standard variables itself, so this process has to have them.
vi.stubEnv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint);
vi.stubEnv("OTEL_EXPORTER_OTLP_HEADERS", "x-collector-key=of-the-tests");
vi.stubEnv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=tests");
afterAll(() => vi.unstubAllEnvs());

const service = await startTestService({
  OTEL_EXPORTER_OTLP_ENDPOINT: collector.endpoint,
  OTEL_BSP_SCHEDULE_DELAY: "50",
  WEBHOOK_ALLOW_PRIVATE: "true",
});
const receiver = await startReceiver();
const shop = await openShop(service);
const api = merchant(service.httpUrl, shop.liveKey);
const phone = "01087651234";

/** The API of a process that has met no conflict: after one, creations skip the statement for those without. */
async function freshApi() {
  const other = await service.startAnother({ ROLES: "api" });
  onTestFinished(() => other.close());
  return merchant(other.httpUrl, shop.liveKey);
}

const traceId = "0af7651916cd43dd8448eb211c80319c";
const parent = { traceparent: `00-${traceId}-b7ad6b7169203331-01`, tracestate: "shop=1" };

const under = (trace: string) => ({ traceparent: `00-${trace}-b7ad6b7169203331-01` });
const serverSpanOf = (trace: string) =>
  collector.spanWhere((span) => span.traceId === trace && span.kind === 2);
/** The spans that created this verification, as stored for those that link to them. */
async function notedTraces(id: string): Promise<string[]> {
  const text = "SELECT traceparent FROM creation_trace WHERE verification_id = $1";
  const { rows } = await service.db.query(text, [decodeId("vrf_", id)]);
  return rows.map(({ traceparent }) => traceparent);
}

/** The trace is stored concurrently with the answer: a message that came earlier would lack the link. */
const untilNoted = (id: string) => expect.poll(() => notedTraces(id)).toHaveLength(1);

const childOf = (span: CollectedSpan, name: string) =>
  collector.spanWhere((found) => found.parentSpanId === span.spanId && found.name === name);

test("a REST call is a span under its traceparent, with spans of the core, the storage and the statement below", async () => {
  const answer = await (await freshApi()).create({ state: "secret-state" }, "tracing-1", parent);
  const request = await collector.spanWhere(
    (span) => span.attributes["phoneproof.request_id"] === answer.headers.get("x-request-id"),
  );
  expect(request).toMatchObject({
    traceId,
    parentSpanId: "b7ad6b7169203331",
    name: "POST /v1/verifications",
    kind: 2,
    failed: false,
    attributes: {
      "http.request.method": "POST",
      "http.route": "/v1/verifications",
      "http.response.status_code": 201,
      "phoneproof.project_id": shop.projectId,
    },
  });
  const core = await childOf(request, "core createVerification");
  expect(core.attributes["phoneproof.verification_id"]).toBe(answer.body.id);
  const batch = await childOf(core, "storage create");
  expect(batch.attributes["db.operation.batch.size"]).toBe(1);
  const statement = await childOf(batch, "create_new");
  expect(statement).toMatchObject({ traceId, kind: 3, attributes: { "db.system.name": "postgresql" } });
});

test("a gRPC call is a span with spans of the core and the storage below", async () => {
  const client = service.client(VerificationService, shop.liveKey);
  const grpcTrace = "1af7651916cd43dd8448eb211c80319c";
  await client
    .getVerification(
      { verificationId: "vrf_01m7yrddhzfyja3hhg9my162t1" },
      { headers: { traceparent: `00-${grpcTrace}-b7ad6b7169203331-01` } },
    )
    .catch(() => undefined);
  const name = "phoneproof.v1.VerificationService/GetVerification";
  const span = await collector.spanWhere((found) => found.traceId === grpcTrace && found.name === name);
  expect(span).toMatchObject({
    kind: 2,
    failed: false,
    attributes: {
      "rpc.response.status_code": "NOT_FOUND",
      "error.type": "NOT_FOUND",
      "phoneproof.project_id": shop.projectId,
    },
  });
  // The caller's fault: it must not count in the error rate.
  const core = await childOf(span, "core getVerification");
  expect(core).toMatchObject({ failed: false, attributes: { "error.type": "verification_not_found" } });
  await childOf(core, "storage read");
});

test("for a replayed creation neither of the two statements is marked as failed", async () => {
  const fresh = await freshApi();
  await fresh.create({}, "tracing-repeated");
  const trace = "2bf7651916cd43dd8448eb211c80319c";
  await fresh.create({}, "tracing-repeated", under(trace));
  const span = await serverSpanOf(trace);
  const batch = await childOf(await childOf(span, "core createVerification"), "storage create");
  expect(await childOf(batch, "create_new")).toMatchObject({ failed: false });
  expect(await childOf(batch, "create")).toMatchObject({ failed: false });
});

test("a replay does not count as the creation, even if the first call was not sampled", async () => {
  const first = "cbf7651916cd43dd8448eb211c80319c";
  const { body } = await api.create({}, "tracing-unsampled", {
    traceparent: `00-${first}-b7ad6b7169203331-00`,
  });
  const replayed = await api.create({}, "tracing-unsampled", under("dbf7651916cd43dd8448eb211c80319c"));
  expect(replayed.body.id).toBe(body.id);
  // What it would have written is written before the trace of a later creation.
  const later = await api.create({}, "tracing-later", under("ebf7651916cd43dd8448eb211c80319c"));
  await untilNoted(later.body.id);
  expect(await notedTraces(body.id)).toEqual([]);
});

test("a gRPC call that is refused before its message is read is a span too", async () => {
  const { liveKey } = await service.createProject({ rateLimitPerMinute: 1 });
  const client = service.client(VerificationService, liveKey);
  const refusedTrace = "5af7651916cd43dd8448eb211c80319c";
  for (const traceparent of ["", `00-${refusedTrace}-b7ad6b7169203331-01`]) {
    await client
      .getVerification({ verificationId: "vrf_none" }, { headers: { traceparent } })
      .catch(() => undefined);
  }
  const span = await collector.spanWhere((found) => found.traceId === refusedTrace);
  expect(span).toMatchObject({
    name: "phoneproof.v1.VerificationService/GetVerification",
    parentSpanId: "b7ad6b7169203331",
    failed: false,
    attributes: { "rpc.response.status_code": "RESOURCE_EXHAUSTED", "error.type": "RESOURCE_EXHAUSTED" },
  });
  expect(span.attributes["phoneproof.request_id"]).toMatch(/^req_/);
});

test.for([
  {
    name: "refused",
    trace: "d0f7651916cd43dd8448eb211c80319c",
    key: () => newCredential("live"),
    code: "invalid_api_key",
  },
  {
    name: "admitted",
    trace: "d1f7651916cd43dd8448eb211c80319c",
    key: () => undefined,
    code: "verification_not_found",
  },
])("the span of a gRPC call that is $name includes the look-up of its key", async ({ trace, key, code }) => {
  const { liveKey } = await service.createProject();
  const holder = await service.db.connect();
  let heldAt = 0;
  try {
    await holder.query("BEGIN; LOCK TABLE api_key");
    const call = answerOf((options) =>
      service
        .client(VerificationService, key() ?? liveKey)
        .getVerification({ verificationId: "vrf_none" }, { ...options, headers: under(trace) }),
    );
    await untilWaiting(service.db, 1);
    heldAt = Date.now();
    await holder.query("ROLLBACK");
    expect((await call).code).toBe(code);
  } finally {
    holder.release(true);
  }
  expect((await serverSpanOf(trace)).startedAt).toBeLessThanOrEqual(heldAt);
});

test("a gRPC call whose message cannot be read is a span too, as is one whose client leaves before its end", async () => {
  const connection = connectRaw(service.grpcAddress);
  onTestFinished(() => connection.destroy());
  const method = "phoneproof.v1.VerificationService/GetVerification";
  const calling = (trace: string, headers = {}) =>
    connection.call(method, { authorization: `Bearer ${shop.liveKey}`, ...under(trace), ...headers });
  const [unreadable, late, left] = ["d2f7", "d3f7", "d4f7"].map(
    (start) => `${start}651916cd43dd8448eb211c80319c`,
  ) as [string, string, string];
  const refused = calling(unreadable);
  await refused.send(Buffer.from([255, 255]));
  refused.halfClose();
  expect((await refused.status).code).toBe(Code.InvalidArgument);
  expect((await calling(late, { "grpc-timeout": "100m" }).status).code).toBe(Code.DeadlineExceeded);
  const leaving = calling(left);
  // Its key was looked up for the calls before: once the next one is answered, this one is waited for.
  await connection.call(method).status;
  leaving.cut();

  for (const [trace, status, failed] of [
    [unreadable, "INVALID_ARGUMENT", false],
    [late, "DEADLINE_EXCEEDED", true],
    [left, "CANCELLED", false],
  ] as const) {
    expect(await serverSpanOf(trace)).toMatchObject({
      name: method,
      parentSpanId: "b7ad6b7169203331",
      failed,
      attributes: {
        "phoneproof.request_id": expect.stringMatching(/^req_/),
        "phoneproof.project_id": shop.projectId,
        "rpc.response.status_code": status,
        "error.type": status,
      },
    });
  }
});

test("the span of an answered gRPC call has status OK, and a stream is one span with its reads below", async () => {
  const client = service.client(VerificationService, shop.liveKey);
  const [answeredTrace, watchTrace] = [
    "6af7651916cd43dd8448eb211c80319c",
    "7af7651916cd43dd8448eb211c80319c",
  ];
  let requestId: string | null = null;
  const { verification } = await client.createVerification(
    { idempotencyKey: "tracing-grpc" },
    { headers: under(answeredTrace), onHeader: (header) => (requestId = header.get("x-request-id")) },
  );
  const verificationId = verification?.id ?? "";
  const method = "phoneproof.v1.VerificationService";
  expect(await serverSpanOf(answeredTrace)).toMatchObject({
    name: `${method}/CreateVerification`,
    parentSpanId: "b7ad6b7169203331",
    failed: false,
    attributes: {
      "phoneproof.request_id": requestId,
      "phoneproof.project_id": shop.projectId,
      "rpc.response.status_code": "OK",
    },
  });

  await client.cancelVerification({ verificationId });
  const seen = await Array.fromAsync(
    client.watchVerification({ verificationId }, { headers: under(watchTrace) }),
  );
  expect(seen).toHaveLength(1);
  const watch = await serverSpanOf(watchTrace);
  expect(watch).toMatchObject({
    name: `${method}/WatchVerification`,
    failed: false,
    attributes: { "rpc.response.status_code": "OK" },
  });
  await collector.spanWhere((span) => span.traceId === watchTrace && span.parentSpanId === watch.spanId);
});

test("the span of a gRPC call that the service could not answer has failed; one whose client left has not", async () => {
  const [faultTrace, leftTrace] = ["8af7651916cd43dd8448eb211c80319c", "9af7651916cd43dd8448eb211c80319c"];
  const proxy = await startCuttableProxy(service.databaseUrl);
  const distant = await service.startAnother({ DATABASE_URL: proxy.databaseUrl });
  proxy.cut();
  const { code } = await answerOf(() =>
    distant
      .client(VerificationService)
      .getVerification({ verificationId: "vrf_01m7yrddhzfyja3hhg9my162t1" }, { headers: under(faultTrace) }),
  );
  expect(code).toBe("service_unavailable");
  expect(await serverSpanOf(faultTrace)).toMatchObject({
    failed: true,
    attributes: { "rpc.response.status_code": "UNAVAILABLE", "error.type": "UNAVAILABLE" },
  });
  const core = await childOf(await serverSpanOf(faultTrace), "core getVerification");
  expect(core).toMatchObject({ failed: true, attributes: { "error.type": "service_unavailable" } });
  proxy.restore();

  const client = service.client(VerificationService, shop.liveKey);
  const { verification } = await client.createVerification({ idempotencyKey: "tracing-left" });
  const leaving = new AbortController();
  const seen = client
    .watchVerification(
      { verificationId: verification?.id ?? "" },
      { headers: under(leftTrace), signal: leaving.signal },
    )
    [Symbol.asyncIterator]();
  await seen.next();
  leaving.abort();
  await seen.next().catch(() => undefined);
  expect((await serverSpanOf(leftTrace)).failed).toBe(false);
});

/** Finds calls that wait for a lock. The service's own jobs may be waiting too, but their statements do not contain this word. */
const blockedCharge = `SELECT FROM pg_stat_activity
  WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%charged%'`;

test("the span of a gRPC call whose client left before the answer is CANCELLED with its request id, and has not failed", async () => {
  const trace = "aaf7651916cd43dd8448eb211c80319c";
  const leaving = new AbortController();
  const holder = await service.db.connect();
  try {
    await holder.query("BEGIN");
    await holder.query("LOCK TABLE verification");
    const call = service
      .client(VerificationService, shop.liveKey)
      .getVerification(
        { verificationId: "vrf_01m7yrddhzfyja3hhg9my162t1" },
        { headers: under(trace), signal: leaving.signal },
      );
    const isBlocked = async () => (await service.db.query(blockedCharge)).rowCount === 1;
    await Promise.all([
      expect(call).rejects.toThrow(),
      vi.waitUntil(isBlocked, { timeout: 45_000 }).finally(() => leaving.abort()),
    ]);
    expect(await serverSpanOf(trace)).toMatchObject({
      failed: false,
      attributes: {
        "phoneproof.request_id": expect.stringMatching(/^req_/),
        "rpc.response.status_code": "CANCELLED",
        "error.type": "CANCELLED",
      },
    });
  } finally {
    await holder.query("ROLLBACK");
    holder.release();
  }
});

test("the span of a REST call whose client left before the answer has no status, and has not failed", async () => {
  const trace = "cbf7651916cd43dd8448eb211c80319c";
  const holder = await service.db.connect();
  try {
    await holder.query("BEGIN");
    await holder.query("LOCK TABLE verification");
    const { hostname, port } = new URL(service.httpUrl);
    const socket = net.connect(Number(port), hostname);
    const head = `Host: localhost\r\nAuthorization: Bearer ${shop.liveKey}\r\ntraceparent: ${under(trace).traceparent}\r\n`;
    socket.write(`GET /v1/verifications/vrf_01m7yrddhzfyja3hhg9my162t1 HTTP/1.1\r\n${head}\r\n`);
    await vi.waitUntil(async () => (await service.db.query(blockedCharge)).rowCount === 1, {
      timeout: 45_000,
    });
    // A client that only ends its side could still read the answer.
    socket.resetAndDestroy();
    const { attributes, failed } = await serverSpanOf(trace);
    expect(failed).toBe(false);
    expect(attributes).toHaveProperty(["phoneproof.request_id"]);
    expect(attributes).not.toHaveProperty(["http.response.status_code"]);
  } finally {
    await holder.query("ROLLBACK");
    holder.release();
  }
});

test("requests that share a statement and its span are linked to each other", async () => {
  const creation = (index: number) =>
    [
      "POST /v1/verifications HTTP/1.1",
      "Host: localhost",
      `Authorization: Bearer ${shop.liveKey}`,
      `Idempotency-Key: tracing-shared-${index}`,
      `Traceparent: 00-${traceId}-00000000000000${10 + index}-01`,
      "Content-Type: application/json",
      "Content-Length: 2",
      "",
      "{}",
    ].join("\r\n");
  // While the first is held up, the others queue behind it: all have been read once a later request is answered.
  const lock = await service.db.connect();
  onTestFinished(() => lock.release(true));
  await lock.query("BEGIN; LOCK TABLE verification");
  const created = Array.from({ length: 30 }, (_, index) =>
    exchange(service.httpUrl, creation(index), { answers: 1 }),
  );
  await untilWaiting(service.db, 1);
  await fetch(`${service.httpUrl}/v1/nothing`);
  await lock.query("ROLLBACK");
  const statuses = (await Promise.all(created)).flat().map(({ status }) => status);
  expect(new Set(statuses)).toEqual(new Set([201]));
  const batch = await collector.spanWhere(({ name, links }) => name === "storage create" && links.length > 0);
  expect(batch.attributes["db.operation.batch.size"]).toBe(batch.links.length + 1);
  for (const { spanId } of batch.links) {
    const linked = await collector.spanWhere((span) => span.spanId === spanId);
    expect(linked.name).toBe("core createVerification");
    expect(linked.links).toContainEqual({ traceId: batch.traceId, spanId: batch.spanId });
  }
});

test("the spans of the verifying message and of its webhook are linked to the creation", async () => {
  await shop.setWebhook(receiver.url);
  const creationTrace = "2af7651916cd43dd8448eb211c80319c";
  const { body } = await api.create({}, "tracing-2", {
    traceparent: `00-${creationTrace}-b7ad6b7169203331-01`,
  });
  const created = await collector.spanWhere(
    ({ name, traceId }) => name === "core createVerification" && traceId === creationTrace,
  );
  const creation = { traceId: created.traceId, spanId: created.spanId };
  await untilNoted(body.id);
  const [receipt] = await service.sms({ to: body.destination, from: phone, text: body.sms_text });
  expect(receipt).toMatchObject({ outcome: "VERIFIED" });

  const of = (name: string) =>
    collector.spanWhere(
      (span) => span.name === name && span.attributes["phoneproof.verification_id"] === body.id,
    );
  const message = await of("inbound message");
  expect(message).toMatchObject({
    kind: 5,
    parentSpanId: "",
    attributes: {
      "phoneproof.outcome": "verified",
      "phoneproof.carrier": "SKT",
      "phoneproof.duplicate": false,
    },
  });
  expect(message.links).toContainEqual(creation);
  await childOf(await childOf(message, "storage inbound"), "inbound_plain");
  const others = message.links.filter(({ spanId }) => spanId !== creation.spanId);
  expect(others).toHaveLength(1);
  const stream = await collector.spanWhere(({ spanId }) => spanId === others[0]?.spanId);
  expect(stream).toMatchObject({
    name: "phoneproof.v1.InboundMessageService/StreamInboundMessages",
    traceId: others[0]?.traceId,
  });

  await deliveryWhen(service, body.id, attempted(1));
  const attempt = await of("webhook attempt");
  expect(attempt).toMatchObject({
    kind: 3,
    attributes: { "phoneproof.event_type": "verification.verified", "http.response.status_code": 204 },
  });
  expect(attempt.links).toEqual([creation]);
  // The endpoint gets the attempt's span as the parent of its own.
  expect(receiver.received[0]?.headers.traceparent).toBe(`00-${attempt.traceId}-${attempt.spanId}-01`);
});

test("a message that could not be judged gets no receipt, and its span ends as failed", async () => {
  const { body } = await api.create({}, "tracing-fault");
  const message = { to: body.destination, from: phone, text: body.sms_text, carrier: "KT" };
  await service.db.query("ALTER TABLE message_fingerprint RENAME TO out_of_reach");
  try {
    await expect(service.sms(message)).rejects.toMatchObject({ code: 14 });
  } finally {
    await service.db.query("ALTER TABLE out_of_reach RENAME TO message_fingerprint");
  }
  const span = await collector.spanWhere(
    ({ name, attributes }) => name === "inbound message" && attributes["phoneproof.carrier"] === "KT",
  );
  expect(span).toMatchObject({ failed: true, attributes: { "error.type": expect.any(String) } });
  expect(await service.sms(message)).toMatchObject([{ outcome: "VERIFIED", verificationId: body.id }]);
});

test("if the creation's trace cannot be looked up, a message's span only lacks the link", async () => {
  const { body } = await api.create({}, "tracing-lost-trace");
  await untilNoted(body.id);
  await service.db.query("ALTER TABLE creation_trace RENAME TO out_of_reach");
  try {
    const message = { to: body.destination, from: phone, text: body.sms_text };
    expect(await service.sms(message)).toMatchObject([{ outcome: "VERIFIED" }]);
    const span = await collector.spanWhere(
      ({ name, attributes }) =>
        name === "inbound message" && attributes["phoneproof.verification_id"] === body.id,
    );
    expect(span.failed).toBe(false);
    // That of its stream.
    expect(span.links).toHaveLength(1);
  } finally {
    await service.db.query("ALTER TABLE out_of_reach RENAME TO creation_trace");
  }
});

test("the span of a failed attempt says whether the endpoint refused or did not answer", async () => {
  const failing = await openShop(service);
  const endpoint = await startReceiver(refuseForLong(500));
  await failing.setWebhook(endpoint.url);
  const refused = await failing.event();
  await deliveryWhen(service, refused, attempted(1));
  await endpoint.close();
  const unanswered = await failing.event();
  await deliveryWhen(service, unanswered, attempted(1));
  const spanOf = (id: string) =>
    collector.spanWhere(
      ({ name, attributes }) => name === "webhook attempt" && attributes["phoneproof.verification_id"] === id,
    );
  expect(await spanOf(refused)).toMatchObject({
    failed: true,
    attributes: { "error.type": "refused", "http.response.status_code": 500 },
  });
  const { failed, attributes } = await spanOf(unanswered);
  expect([failed, attributes["error.type"]]).toEqual([true, "unanswered"]);
  expect(attributes).not.toHaveProperty(["http.response.status_code"]);
});

test("a message without a plain match has spans of the statements that read and store", async () => {
  // No other test's message has this carrier.
  const carrier = "LGU+";
  await service.sms({ to: "0200000000", from: phone, text: "hello", messageId: "judged-1", carrier });
  const message = await collector.spanWhere(
    ({ name, attributes }) => name === "inbound message" && attributes["phoneproof.carrier"] === carrier,
  );
  expect(message.attributes["phoneproof.outcome"]).toBe("no_match");
  const batch = await childOf(message, "storage inbound");
  await childOf(batch, "inbound_state");
  await childOf(batch, "inbound_store");
});

test("a call that was not sampled upstream is not collected", async () => {
  const unsampled = "3af7651916cd43dd8448eb211c80319c";
  await api.create({}, "tracing-3", { traceparent: `00-${unsampled}-b7ad6b7169203331-00` });
  // The span of a later call has arrived.
  const { headers } = await api.read("vrf_none");
  await collector.spanWhere(
    (span) => span.attributes["phoneproof.request_id"] === headers.get("x-request-id"),
  );
  expect(collector.spans.filter((span) => span.traceId === unsampled)).toEqual([]);
});

/** Which calls are sampled: one whose caller samples, one whose caller does not, and one without a caller's trace. */
test.for([
  { sampler: "always_on", ratio: "", sampled: [true, true, true] },
  { sampler: "always_off", ratio: "", sampled: [false, false, false] },
  { sampler: "traceidratio", ratio: "1", sampled: [true, true, true] },
  { sampler: "traceidratio", ratio: "0", sampled: [false, false, false] },
  { sampler: "parentbased_always_on", ratio: "", sampled: [true, false, true] },
  { sampler: "parentbased_always_off", ratio: "", sampled: [true, false, false] },
  { sampler: "parentbased_traceidratio", ratio: "1", sampled: [true, false, true] },
  { sampler: "parentbased_traceidratio", ratio: "0", sampled: [true, false, false] },
])("OTEL_TRACES_SAMPLER=$sampler with the argument '$ratio' samples as it says", async ({
  sampler,
  ratio,
  sampled,
}) => {
  const { tracing: settings } = parseConfig({
    OTEL_EXPORTER_OTLP_ENDPOINT: collector.endpoint,
    OTEL_TRACES_SAMPLER: sampler,
    OTEL_TRACES_SAMPLER_ARG: ratio,
  });
  if (settings === null) throw new Error("tracing is off");
  const tracing = openTracing(settings, { onLost() {}, onFound() {} });
  onTestFinished(() => tracing.close());
  const isSampled = (traceparent: string | undefined) => {
    const headers = (name: string) => (name === "traceparent" ? traceparent : undefined);
    return tracing.begin("a call", { kind: "server", headers }).traceparent !== null;
  };
  const callers = [`00-${traceId}-b7ad6b7169203331-01`, `00-${traceId}-b7ad6b7169203331-00`, undefined];
  expect(callers.map(isSampled)).toEqual(sampled);
});

test("no span contains a phone, a code, a merchant's text, a credential or a window's token", async () => {
  const { body } = await api.create({ mode: "match", expected_phone: phone });
  const token = body.verification_url.split("/").at(-1) ?? "";
  const answer = await fetch(`${service.httpUrl}/v/${token}?secret-query`);
  expect(answer.status).toBe(200);
  await collector.spanWhere(({ attributes }) => attributes["http.route"] === "/v/:token");
  const sent = collector.bodies.map((bytes) => bytes.toString("latin1")).join("\n");
  const [code = ""] = /\d{8}/.exec(body.sms_text) ?? [];
  for (const secret of [phone, code, body.destination, token, shop.liveKey, service.adminToken, "secret-"]) {
    expect(sent).not.toContain(secret);
  }
});

test("statements of periodic background work are not traced", async () => {
  const isStatement = ({ attributes }: CollectedSpan) => "db.query.summary" in attributes;
  await api.create();
  await collector.spanWhere(isStatement);
  expect(collector.spans.filter((span) => isStatement(span) && span.parentSpanId === "")).toEqual([]);
});

test("at the end the spans that are left are exported, each with the time at which its work ended", async () => {
  const settings = { sampler: "always_on", samplerRatio: 1, scheduleDelayMs: 999_999 };
  const tracing = openTracing(settings, { onLost() {}, onFound() {} });
  const endedAt = Date.now() + 60_000;
  tracing.begin("the last work", { kind: "internal" }).end(endedAt);
  const closedFrom = performance.now();
  await tracing.close();
  // It waits for the export, but for no longer than two seconds, during which a machine may stand still.
  if (performance.now() - closedFrom > 1_990)
    await collector.spanWhere(({ name }) => name === "the last work");
  expect(collector.spans).toContainEqual(expect.objectContaining({ name: "the last work", endedAt }));
});

test("spans are exported when the interval between exports has passed", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  onTestFinished(() => void vi.useRealTimers());
  const settings = { sampler: "always_on", samplerRatio: 1, scheduleDelayMs: 70 };
  const tracing = openTracing(settings, { onLost() {}, onFound() {} });
  onTestFinished(() => tracing.close());
  tracing.begin("work before an export", { kind: "internal" }).end();
  vi.advanceTimersByTime(70);
  // Does not poll: vitest's polls move fake timers.
  while (!collector.spans.some(({ name }) => name === "work before an export")) await setImmediate();
});

test.for([
  { name: "refuses spans", answer: (response: ServerResponse) => response.writeHead(400).end() },
  { name: "does not answer", answer: () => {} },
])("a collector that $name neither delays the end nor makes it fail", async ({ answer }) => {
  const unwilling = createServer((request, response) => {
    request.resume();
    answer(response);
  }).listen(0, "127.0.0.1");
  await once(unwilling, "listening");
  const { port } = unwilling.address() as AddressInfo;
  vi.stubEnv("OTEL_EXPORTER_OTLP_ENDPOINT", `http://127.0.0.1:${port}`);
  const tracing = openTracing(
    { sampler: "always_on", samplerRatio: 1, scheduleDelayMs: 999_999 },
    { onLost() {}, onFound() {} },
  );
  vi.stubEnv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint);
  onTestFinished(() => {
    unwilling.close();
    unwilling.closeAllConnections();
  });
  tracing.begin("the last work", { kind: "internal" }).end();
  // The exporter itself would wait for ten seconds. Timers fire in the order of their times, however late they are.
  const outcome = Promise.race([
    tracing.close().then(() => "closed"),
    delay(6_000, "waiting", { ref: false }),
  ]);
  expect(await outcome).toBe("closed");
});

test("the headers and resource attributes of the standard variables are sent with the spans", () => {
  const [request] = collector.requests;
  expect(request).toMatchObject({
    path: "/v1/traces",
    headers: { "content-type": "application/x-protobuf", "x-collector-key": "of-the-tests" },
  });
  expect(collector.resources[0]).toMatchObject({
    "service.version": version,
    "service.name": "phoneproof",
    "deployment.environment.name": "tests",
  });
});

test("the log reports once that a collector refuses spans, and once that it accepts them again", async () => {
  let refused = 0;
  let taken = 0;
  const endpoint = createServer((request, response) => {
    request.resume();
    const status = refused < 3 ? 404 : 200;
    if (status === 404) refused += 1;
    else taken += 1;
    response.writeHead(status, { "content-type": "application/x-protobuf" }).end();
  }).listen(0, "127.0.0.1");
  onTestFinished(() => void endpoint.close());
  await once(endpoint, "listening");
  const traced = await startProcess({
    DATABASE_URL: service.databaseUrl,
    OTEL_EXPORTER_OTLP_ENDPOINT: `http://127.0.0.1:${(endpoint.address() as AddressInfo).port}`,
    OTEL_BSP_SCHEDULE_DELAY: "20",
  });
  await vi.waitUntil(
    async () => {
      await fetch(`${traced.httpUrl}/v1/verifications/any`);
      return taken > 2;
    },
    { timeout: 45_000, interval: 50 },
  );
  const logged = () =>
    traced
      .text()
      .split("\n")
      .filter((line) => line.includes("collector"))
      .map((line) => JSON.parse(line));
  await expect.poll(logged, { timeout: 45_000 }).toHaveLength(2);
  expect(logged()).toMatchObject([
    {
      level: 40,
      msg: "the trace collector does not accept spans: they are lost",
      err: { message: expect.any(String) },
    },
    { level: 30, msg: "the trace collector accepts spans again" },
  ]);
});

test("a start loads no HTTP client for webhooks, and, without an endpoint, nothing of OpenTelemetry except its API", () => {
  const program = path.join(import.meta.dirname, "loaded-modules.ts");
  const { OTEL_EXPORTER_OTLP_ENDPOINT: _, ...environment } = process.env;
  const loaded = execFileSync(process.execPath, [program], {
    encoding: "utf8",
    // A worker could have a webhook to send.
    env: { ...environment, DATABASE_URL: service.databaseUrl, ROLES: "api" },
  });
  expect(loaded).toContain("node_modules/pino/");
  expect(loaded).not.toContain("node_modules/undici/");
  // The metrics library loads the API, for exemplars.
  expect(loaded.split("\n").filter((file) => /@opentelemetry\/(?!api\/)|open-telemetry/.test(file))).toEqual(
    [],
  );
});

test("a stream whose client leaves without reading its receipts is counted as ended, and its span has not failed", async () => {
  const counted = async () => {
    const { sum } = await scrape(service.opsUrl);
    const [ended, open, taken] = [
      sum("phoneproof_rpc_streams_ended_total", { code: "canceled" }),
      sum("phoneproof_rpc_streams_open"),
      sum("phoneproof_inbound_messages_total"),
    ];
    return { ended, open, taken };
  };
  const before = await counted();
  const traces = Array.from({ length: 8 }, (_, index) => `baf7651916cd43dd8448eb211c803${index}00`);
  const messages = Array.from({ length: 1_000 }, () => ({ to: "1" }));
  const request = toBinary(
    StreamInboundMessagesRequestSchema,
    create(StreamInboundMessagesRequestSchema, { messages }),
  );
  const connection = connectRaw(service.grpcAddress, { windowBytes: 0 });
  for (const trace of traces) {
    const stream = connection.call("phoneproof.v1.InboundMessageService/StreamInboundMessages", {
      authorization: `Bearer ${service.adminToken}`,
      ...under(trace),
    });
    for (let group = 0; group < 10; group++) stream.send(request).catch(() => {});
  }
  // As many messages as a stream may send without reading receipts.
  await expect
    .poll(async () => (await counted()).taken)
    .toBeGreaterThanOrEqual(before.taken + traces.length * 5_000);
  connection.destroy();
  await expect.poll(counted).toMatchObject({ ended: before.ended + traces.length, open: before.open });
  for (const trace of traces) {
    expect(await serverSpanOf(trace)).toMatchObject({
      failed: false,
      attributes: { "rpc.response.status_code": "CANCELLED" },
    });
  }
});
