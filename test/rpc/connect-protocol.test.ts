/** Connect's own protocol on the gRPC port, as `buf curl` speaks it where it is told nothing else. */
import { once } from "node:events";
import http2 from "node:http2";
import { gzipSync } from "node:zlib";
import { Code, createClient } from "@connectrpc/connect";
import { createConnectTransport } from "@connectrpc/connect-node";
import { afterAll, expect, test } from "vitest";
import {
  InboundMessageOutcome,
  InboundMessageService,
} from "../../src/gen/proto/phoneproof/v1/inbound_message_pb.ts";
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

const service = await startTestService({ ROLES: "api" });
const session = http2.connect(`http://${service.grpcAddress}`);
afterAll(() => session.destroy());

const transport = (token: string) =>
  createConnectTransport({
    httpVersion: "2",
    baseUrl: `http://${service.grpcAddress}`,
    interceptors: [
      (next) => (request) => {
        request.header.set("authorization", `Bearer ${token}`);
        return next(request);
      },
    ],
  });

/** A unary call by hand. */
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

test("a refusal carries the catalogue's code and what it cost", async () => {
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
  expect(headers["x-usage-calls"]).toBeUndefined();
  expect(usageOf(await merchant(service.httpUrl, liveKey).read("vrf_none"))).toBe("2/unlimited");
});

test.for<{ what: string; body: Uint8Array | string; headers?: Record<string, string>; code: string }>([
  { what: "no JSON", body: "{", code: "malformed_request" },
  { what: "another type than the field's", body: '{"verificationId":1}', code: "malformed_request" },
  {
    what: "not of the fields that there are",
    body: '{"verificationId":"vrf_none","projectid":"prj_none"}',
    code: "malformed_request",
  },
  {
    what: "not of the values that a field has",
    body: '{"verificationId":"vrf_none","environment":"test"}',
    code: "malformed_request",
  },
  {
    what: "no protobuf",
    body: Buffer.from("0aff", "hex"),
    headers: { "content-type": "application/proto" },
    code: "malformed_request",
  },
  {
    what: "not packed as it says",
    body: "{}",
    headers: { "content-encoding": "gzip" },
    code: "malformed_request",
  },
  { what: "more than a message may be", body: `"${"a".repeat(65_536)}"`, code: "body_too_large" },
  {
    what: "packed, and more than a message may be",
    body: gzipSync(Buffer.alloc(65_537)),
    headers: { "content-encoding": "gzip" },
    code: "body_too_large",
  },
])("a message that is $what is counted, and told of in the catalogue's words", async ({
  body,
  headers,
  code,
}) => {
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

test("a time-out that no timer holds ends nothing", async () => {
  const { liveKey } = await service.createProject();
  const ask = (timeout: string) =>
    post(liveKey, '{"verificationId":"vrf_none"}', { "connect-timeout-ms": timeout });
  for (const timeout of ["9999999999", "2147483648", "2147483647"]) {
    expect((await ask(timeout)).body.code, timeout).toBe("not_found");
  }
  expect((await ask("0")).body.code).toBe("deadline_exceeded");
  expect((await ask("soon")).body.code).toBe("invalid_argument");
});

test("a method that is not there is unimplemented, whatever it is sent", async () => {
  const { liveKey } = await service.createProject();
  const paths = [
    "/",
    "/phoneproof.v1.VerificationService/Nothing",
    "/phoneproof.v1.NoService/GetVerification",
  ];
  for (const path of paths) {
    for (const type of ["application/json", "application/proto", "application/connect+json", "text/plain"]) {
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

test("gRPC-Web is not spoken", async () => {
  const { liveKey } = await service.createProject();
  const frame = Buffer.alloc(5);
  const { status } = await post(liveKey, frame, { "content-type": "application/grpc-web+proto" });
  expect(status).toBe(415);
});
