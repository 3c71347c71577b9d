/** The Connect protocol on the gRPC port, which `buf curl` speaks by default. */
import { once } from "node:events";
import http2 from "node:http2";
import { gzipSync } from "node:zlib";
import type { DescMethod, JsonObject } from "@bufbuild/protobuf";
import { Code, createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { afterAll, expect, onTestFinished, test } from "vitest";
import type { FieldViolation } from "../../src/failures.ts";
import { ApiKeyService } from "../../src/gen/proto/phoneproof/v1/api_key_pb.ts";
import {
  InboundMessageOutcome,
  InboundMessageService,
} from "../../src/gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import { ServiceTokenService } from "../../src/gen/proto/phoneproof/v1/service_token_pb.ts";
import {
  Environment,
  VerificationMode,
  VerificationService,
  VerificationStatus,
} from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { merchant, newIdempotencyKey, usageOf } from "../gateway/merchant.ts";
import { startTestService } from "../harness/service.ts";
import { inboundMessage, newPhone } from "../service/sms-source.ts";
import { refusalOf } from "./grpc-answer.ts";
import { connectRaw } from "./raw-grpc.ts";

const service = await startTestService({ ROLES: "api" });
const session = http2.connect(`http://${service.grpcAddress}`);
afterAll(() => session.destroy());

const transport = (token: string, useBinaryFormat = true) =>
  createConnectTransport({
    httpVersion: "2",
    useBinaryFormat,
    baseUrl: `http://${service.grpcAddress}`,
    interceptors: [
      (next) => (request) => {
        request.header.set("authorization", `Bearer ${token}`);
        return next(request);
      },
    ],
  });

/** A unary call without a client library. */
async function post(token: string, body: Uint8Array | string, headers: Record<string, string> = {}) {
  const stream = session.request({
    ":method": "POST",
    ":path": `/${VerificationService.typeName}/${VerificationService.method.getVerification.name}`,
    "content-type": "application/json",
    authorization: `Bearer ${token}`,
    ...headers,
  });
  stream.on("error", () => {});
  stream.end(body);
  const [answer] = (await once(stream, "response")) as [http2.IncomingHttpHeaders];
  const text = Buffer.concat(await Array.fromAsync(stream)).toString();
  return { status: answer[":status"], headers: answer, body: text === "" ? undefined : JSON.parse(text) };
}

test("a verification is created, watched and verified", async () => {
  const project = await service.createProject();
  const { createVerification, watchVerification, getVerification } = createClient(
    VerificationService,
    transport(project.liveKey),
  );
  const created = await createVerification({
    idempotencyKey: newIdempotencyKey(),
    mode: VerificationMode.DISCOVER,
  });
  const { id = "" } = created.verification ?? {};
  const phone = newPhone();
  const sms = inboundMessage({ to: created.destination, text: created.smsText, from: phone });
  const watched: VerificationStatus[] = [];
  for await (const { verification } of watchVerification({ verificationId: id })) {
    watched.push(verification?.status ?? VerificationStatus.UNSPECIFIED);
    if (watched.length > 1) continue;
    const sent = (async function* () {
      yield { messages: [sms] };
    })();
    const inbound = createClient(InboundMessageService, transport(service.adminToken));
    const answers = await Array.fromAsync(inbound.streamInboundMessages(sent));
    expect(answers.flatMap(({ receipts }) => receipts.map(({ outcome }) => outcome))).toEqual([
      InboundMessageOutcome.VERIFIED,
    ]);
  }
  expect(watched).toEqual([VerificationStatus.PENDING, VerificationStatus.VERIFIED]);
  expect((await getVerification({ verificationId: id })).verification).toMatchObject({
    phone,
    environment: Environment.LIVE,
  });
});

test("a refusal carries the catalogue's code, and is counted only if the key is valid", async () => {
  const { liveKey } = await service.createProject();
  const { getVerification } = createClient(VerificationService, transport(liveKey));
  const refusal = await getVerification({ verificationId: "vrf_none" }).catch(refusalOf);
  expect(refusal).toMatchObject({ status: Code.NotFound, code: "verification_not_found" });
  const { status, headers, body } = await post("pp_live_none", "{");
  expect([status, body.code, body.details[0].debug.code]).toEqual([
    401,
    "unauthenticated",
    "invalid_api_key",
  ]);
  expect(headers["www-authenticate"]).toBe("Bearer");
  const unknown = await post(liveKey, "{}");
  expect([unknown.status, unknown.headers["www-authenticate"]]).toEqual([404, undefined]);
  expect(headers["x-usage-calls"]).toBeUndefined();
  expect(usageOf(await merchant(service.httpUrl, liveKey).read("vrf_none"))).toBe("3/unlimited");
});

test.for<{ what: string; body: Uint8Array | string; headers?: Record<string, string>; code: string }>([
  { what: "that is not JSON", body: "{", code: "malformed_request" },
  { what: "with a field of the wrong type", body: '{"verificationId":1}', code: "validation_failed" },
  {
    what: "with an unknown field",
    body: '{"verificationId":"vrf_none","projectid":"prj_none"}',
    code: "validation_failed",
  },
  {
    what: "with an unknown enum value",
    body: '{"verificationId":"vrf_none","environment":"test"}',
    code: "validation_failed",
  },
  { what: "that is not an object", body: "[]", code: "malformed_request" },
  {
    what: "that is not UTF-8",
    body: Buffer.from('{"verificationId":"vrf_\xff"}', "latin1"),
    code: "malformed_request",
  },
  {
    what: "that sets a field twice",
    body: '{"verificationId":"a","verification_id":"a"}',
    code: "malformed_request",
  },
  {
    what: "that is not protobuf",
    body: Buffer.from("0aff", "hex"),
    headers: { "content-type": "application/proto" },
    code: "malformed_request",
  },
  {
    what: "that is not compressed as declared",
    body: "{}",
    headers: { "content-encoding": "gzip" },
    code: "malformed_request",
  },
  { what: "over the size limit", body: `"${"a".repeat(65_536)}"`, code: "body_too_large" },
  {
    what: "over the size limit once decompressed",
    body: gzipSync(Buffer.alloc(65_537)),
    headers: { "content-encoding": "gzip" },
    code: "body_too_large",
  },
])("a message $what is counted and refused with the catalogue's code", async ({ body, headers, code }) => {
  const { liveKey } = await service.createProject({ rateLimitPerMinute: 10 });
  const shop = merchant(service.httpUrl, liveKey);
  expect(usageOf(await shop.read("vrf_none"))).toBe("1/unlimited");
  const answer = await post(liveKey, body, headers);
  expect([answer.status, answer.headers["content-type"], answer.body.code]).toEqual([
    400,
    "application/json",
    "invalid_argument",
  ]);
  const [{ type, debug }] = answer.body.details;
  expect([type, debug.code]).toEqual(["phoneproof.v1.ErrorDetail", code]);
  expect(debug.requestId).toBe(answer.headers["x-request-id"]);
  expect(answer.headers["x-usage-calls"]).toBe("2");
  expect(answer.headers.ratelimit).toMatch(/^"read";r=8;t=\d+$/);
  expect(usageOf(await shop.read("vrf_none"))).toBe("3/unlimited");
});

const { createVerification, getVerification, listVerifications, watchVerification } =
  VerificationService.method;
const pathOf = ({ parent, name }: DescMethod) => `/${parent.typeName}/${name}`;
const secret = "01012345678";

test.for<{ method: DescMethod; sent: JsonObject; named: Record<string, string> }>([
  {
    method: createVerification,
    sent: {
      idempotency_key: "of-no-use-1",
      mode: "match",
      expectedPhone: 1012345678,
      state: "\ud800",
      clientReference: null,
      phone: secret,
    },
    named: {
      mode: "must be one of VERIFICATION_MODE_DISCOVER, VERIFICATION_MODE_MATCH",
      expected_phone: "must be a string",
      state: "must be well-formed Unicode: it contains a lone surrogate",
      phone:
        "is not a field of this request: leave it out; the valid fields are project_id, environment, idempotency_key, mode, expected_phone, client_reference, state, parent_origin, return_url",
    },
  },
  {
    method: listVerifications,
    sent: {
      pageSize: 2 ** 31,
      statuses: ["VERIFICATION_STATUS_PENDING", secret],
      createdFrom: secret,
      environment: 2.5,
      projectId: { id: secret },
    },
    named: {
      page_size: "must be a whole number of 32 bits",
      statuses:
        "must be a list, each entry one of VERIFICATION_STATUS_PENDING, VERIFICATION_STATUS_VERIFIED, VERIFICATION_STATUS_EXPIRED, VERIFICATION_STATUS_CANCELLED",
      created_from: "must be a time, such as 2026-11-21T06:41:00.123Z",
      environment: "must be one of ENVIRONMENT_LIVE, ENVIRONMENT_TEST",
      project_id: "must be a string",
    },
  },
  {
    method: ProjectService.method.createProject,
    sent: { name: [secret], usageLimit: `${secret}x`, codeLength: [secret] },
    named: {
      name: "must be a string",
      usage_limit: "must be a whole number of 64 bits",
      code_length: "must be a whole number of 32 bits",
    },
  },
  {
    method: ApiKeyService.method.createApiKey,
    sent: { expiresIn: secret },
    named: { expires_in: "must be a duration in seconds, such as 259200s" },
  },
  {
    method: ServiceTokenService.method.createServiceToken,
    sent: { numbers: [secret, 1], scope: secret },
    named: {
      numbers: "must be a list, each entry a string",
      scope: `must be one of ${["READ", "WRITE", "INGEST", "ADMIN"].map((name) => `SERVICE_TOKEN_SCOPE_${name}`).join(", ")}`,
    },
  },
])("invalid JSON for $method.name is refused with what each field must be, without repeating its values", async ({
  method,
  sent,
  named,
}) => {
  const answer = await post(service.adminToken, JSON.stringify(sent), { ":path": pathOf(method) });
  const [{ debug }] = answer.body.details;
  expect([answer.status, debug.code]).toEqual([400, "validation_failed"]);
  const violations = debug.fields.map(({ field, message }: FieldViolation) => [field, message]);
  expect(Object.fromEntries(violations)).toEqual(named);
  expect(JSON.stringify([answer.body, answer.headers])).not.toContain(secret);
});

test.for([
  { time: "2026-02-28T00:00:00Z", isTime: true },
  { time: "2028-02-29T23:59:59.999999999+09:00", isTime: true },
  { time: "0001-01-01T00:00:00Z", isTime: true },
  { time: "2026-02-29T00:00:00Z", isTime: false },
  { time: "2026-04-31T00:00:00+09:00", isTime: false },
  { time: "2026-11-21T24:00:00Z", isTime: false },
])("a time in JSON is never read as another day: $time is one: $isTime", async ({ time, isTime }) => {
  const { liveKey } = await service.createProject();
  const { status, body } = await post(liveKey, JSON.stringify({ createdFrom: time, createdBefore: time }), {
    ":path": pathOf(listVerifications),
  });
  const message = "must be a time, such as 2026-11-21T06:41:00.123Z";
  const invalid = [
    { field: "created_from", message },
    { field: "created_before", message },
  ];
  expect([status, body.details?.[0].debug.fields]).toEqual(isTime ? [200, undefined] : [400, invalid]);
});

test.for([
  { duration: "90s", isDuration: true },
  { duration: "90.5s", isDuration: true },
  { duration: "5s30m", isDuration: false },
  { duration: "90sec", isDuration: false },
])("a duration in JSON is read to its end: $duration is one: $isDuration", async ({
  duration,
  isDuration,
}) => {
  const { projectId } = await service.createProject();
  const sent = { projectId, environment: "ENVIRONMENT_TEST", expiresIn: duration };
  const { status, body } = await post(service.adminToken, JSON.stringify(sent), {
    ":path": pathOf(ApiKeyService.method.createApiKey),
  });
  const message = "must be a duration in seconds, such as 259200s";
  const invalid = [{ field: "expires_in", message }];
  expect([status, body.details?.[0].debug.fields]).toEqual(isDuration ? [200, undefined] : [400, invalid]);
});

test("gRPC with JSON is refused with the names of the invalid fields too, for unary calls and streams", async () => {
  const { liveKey } = await service.createProject();
  const connection = connectRaw(service.grpcAddress);
  onTestFinished(() => connection.destroy());
  for (const method of [getVerification, watchVerification]) {
    const call = connection.call(pathOf(method).slice(1), {
      authorization: `Bearer ${liveKey}`,
      "content-type": "application/grpc+json",
    });
    void call.send(Buffer.from(JSON.stringify({ verificationId: 1, phone: secret })));
    call.halfClose();
    const { code, detail } = await call.status;
    expect([code, detail?.code]).toEqual([Code.InvalidArgument, "validation_failed"]);
    expect(detail?.fields.map(({ field }) => field)).toEqual(["verification_id", "phone"]);
    expect(detail?.requestId).toBe((await call.trailers)["x-request-id"]);
  }
});

test("a client is told that a connection carries 1,000 calls at a time", async () => {
  const client = http2.connect(`http://${service.grpcAddress}`);
  onTestFinished(() => client.destroy());
  const [settings] = await once(client, "remoteSettings");
  expect(settings.maxConcurrentStreams).toBe(1_000);
});

test.for([
  "%53treamInboundMessages",
  "StreamInboundMessages?query",
])("a call is bound by the rules of its method, also as %s", async (written) => {
  const connection = connectRaw(service.grpcAddress);
  onTestFinished(() => connection.destroy());
  const call = connection.call(`${InboundMessageService.typeName}/${written}`, {
    authorization: `Bearer ${service.adminToken}`,
    "content-type": "application/grpc+json",
  });
  call.halfClose();
  // Inbound messages are not taken as JSON.
  expect(await call.status).toMatchObject({
    code: Code.Unimplemented,
    message: expect.stringContaining("Content-Type"),
  });
});

test("of hundreds of unknown fields only the first ten are named, so that clients accept the trailers", async () => {
  const { liveKey } = await service.createProject();
  const names = Array.from({ length: 500 }, (_, index) => `${index}${"\u{1f4f1}".repeat(30)}`);
  const sent = { verificationId: 1, ...Object.fromEntries(names.map((name) => [name, 1])) };
  const { body } = await post(liveKey, JSON.stringify(sent));
  const [{ value, debug }] = body.details;
  expect(debug.fields).toHaveLength(11);
  expect(debug.fields[0].field).toBe("verification_id");
  expect(debug.fields.at(-1).message).toBe("is not a field of this request, nor are 490 others");
  expect(value.length).toBeLessThan(6_000);
});

test("a Connect timeout beyond the range of timers does not end a call; 0 does, and a word is invalid", async () => {
  const { liveKey } = await service.createProject();
  const ask = (timeout: string) =>
    post(liveKey, '{"verificationId":"vrf_none"}', { "connect-timeout-ms": timeout });
  for (const timeout of ["9999999999", "2147483648", "2147483647"]) {
    expect((await ask(timeout)).body.code, timeout).toBe("not_found");
  }
  expect((await ask("0")).body.code).toBe("deadline_exceeded");
  expect((await ask("soon")).body.code).toBe("invalid_argument");
});

test("an unknown method is unimplemented, whatever it is sent", async () => {
  const { liveKey } = await service.createProject();
  const paths = [
    "/",
    "/phoneproof.v1.VerificationService/Nothing",
    "/phoneproof.v1.NoService/GetVerification",
  ];
  for (const path of paths) {
    for (const type of ["application/json", "application/proto", "text/plain"]) {
      const sent = type === "application/json" ? "{" : "{}";
      const { status, headers, body } = await post(liveKey, sent, { ":path": path, "content-type": type });
      expect([status, headers["content-type"], body]).toEqual([
        501,
        "application/json",
        { code: "unimplemented", message: "no such method" },
      ]);
    }
  }
});

test("a path that cannot be decoded is an unknown method, and a call with an unknown Expect is answered", async () => {
  const { liveKey } = await service.createProject();
  for (const path of ["/%ff", "/%zz", `${pathOf(getVerification)}%e0`, "/%"]) {
    expect(await post(liveKey, "{}", { ":path": path }), path).toMatchObject({
      status: 501,
      headers: { "x-request-id": expect.stringMatching(/^req_/) },
      body: { code: "unimplemented", message: "no such method" },
    });
  }
  const expectant = await post(liveKey, '{"verificationId":"vrf_none"}', { expect: "a miracle" });
  expect(expectant).toMatchObject({ status: 404, body: { code: "not_found" } });
});

test.for([
  { what: "an unknown method", path: "/none/Such", type: "application/connect+proto" },
  { what: "a unary method", path: pathOf(getVerification), type: "application/connect+json" },
  {
    what: "a method that does not take JSON",
    path: pathOf(InboundMessageService.method.streamInboundMessages),
    type: "application/connect+json",
  },
])("a stream of $what ends as unimplemented, before its messages have arrived", async ({ path, type }) => {
  const [, parent = "", name = ""] = path.split("/");
  const called = {
    ...watchVerification,
    parent: { ...VerificationService, typeName: parent },
    name,
  } as typeof watchVerification;
  const sent = Promise.withResolvers<void>();
  onTestFinished(() => sent.resolve());
  const { stream } = transport(service.adminToken, type.endsWith("proto"));
  const messages = async function* () {
    await sent.promise;
    yield {};
  };
  const answer = await stream(called, undefined, undefined, undefined, messages());
  expect(answer.header.get("content-type")).toBe(type);
  expect(answer.header.get("x-request-id")).toMatch(/^req_/);
  expect(await Array.fromAsync(answer.message).catch(refusalOf)).toMatchObject({
    status: Code.Unimplemented,
  });
});

test.for([
  "GET",
  "PUT",
  "OPTIONS",
  "HEAD",
  "PURGE",
  "ANY-OTHER",
])("%s gets 405, with the method that is allowed", async (httpMethod) => {
  for (const type of ["application/json", "application/connect+proto"]) {
    const stream = session.request({
      ":method": httpMethod,
      ":path": pathOf(getVerification),
      "content-type": type,
    });
    stream.end();
    const [headers] = (await once(stream, "response")) as [http2.IncomingHttpHeaders];
    stream.resume();
    expect([headers[":status"], headers.allow]).toEqual([405, "POST"]);
    expect(headers["x-request-id"]).toMatch(/^req_/);
  }
});

test.for([
  `/${VerificationService.typeName}/GetVerification`,
  `/${InboundMessageService.typeName}/StreamInboundMessages`,
  "/grpc.health.v1.Health/Check",
  "/none/Such",
])("an unsupported content type is refused before the body has arrived: %s", async (path) => {
  const others = [
    ...["text/plain", "application/xml", "application/proto; x=y", "application/grpc+foo", ""],
    "application/json; charset=utf-16",
    ...(path.includes("Stream") ? ["application/json"] : []),
  ];
  for (const type of [...others, undefined]) {
    const named = type === undefined ? {} : { "content-type": type };
    const stream = session.request({ ":method": "POST", ":path": path, ...named });
    onTestFinished(() => stream.close());
    stream.on("error", () => {});
    stream.write("x");
    const [headers] = (await once(stream, "response")) as [http2.IncomingHttpHeaders];
    expect([type, headers[":status"]]).toEqual([type, path === "/none/Such" ? 501 : 415]);
    expect(headers["x-request-id"]).toMatch(/^req_/);
    expect(JSON.parse(Buffer.concat(await stream.toArray()).toString())).toMatchObject({
      code: "unimplemented",
    });
  }
});

test("no method accepts gRPC-Web", async () => {
  const { liveKey } = await service.createProject();
  const services = [
    VerificationService,
    InboundMessageService,
    ProjectService,
    ServiceTokenService,
    ApiKeyService,
  ];
  const paths = services.flatMap(({ typeName, methods }) =>
    methods.map(({ name }) => `/${typeName}/${name}`),
  );
  const standard = [
    "/grpc.health.v1.Health/Check",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
  ];
  for (const path of [...paths, ...standard]) {
    const type = "application/grpc-web+proto";
    const { status } = await post(liveKey, Buffer.alloc(5), { ":path": path, "content-type": type });
    expect([path, status]).toEqual([path, 415]);
  }
});
