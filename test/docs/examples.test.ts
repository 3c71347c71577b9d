/** What the pages show as requests and responses is what the service sends. */

import { runInThisContext } from "node:vm";
import { fromJson, toJson } from "@bufbuild/protobuf";
import { createPhoneproof, verifyWebhook } from "@phoneproof/client";
import { afterAll, beforeAll, expect, test } from "vitest";
import { normaliseCarrier } from "../../src/core/carrier.ts";
import { InboundMessageReceiptSchema } from "../../src/gen/proto/phoneproof/v1/inbound_message_pb.ts";
import {
  CreateVerificationResponseSchema,
  Environment,
  VerificationService,
} from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { signedHeaders } from "../../src/webhooks/signature.ts";
import { startTestService, type TestProject } from "../harness/service.ts";
import { readPage } from "./pages.ts";

const service = await startTestService();
afterAll(() => service.close());
let shop: TestProject;
beforeAll(async () => {
  shop = await service.createProject();
});

const jsonOf = (file: string, has: string) => {
  const block = readPage(file).blocks.find(({ language, code }) => language === "json" && code.includes(has));
  return JSON.parse(block?.code ?? "");
};

/** The status line and the headers of the page's first block of HTTP with this status. */
function shownResponse(file: string, status: number) {
  const block = readPage(file).blocks.find(
    ({ language, code }) => language === "http" && code.startsWith(`HTTP/1.1 ${status} `),
  );
  const lines = (block?.code ?? "").trim().split("\n").slice(1);
  return Object.fromEntries(lines.map((line) => line.split(/: (.*)/s, 2) as [string, string]));
}

const create = (key: string, idempotencyKey: string, body = '{"client_reference":"signup-4711"}') =>
  fetch(`${service.httpUrl}/v1/verifications`, {
    method: "POST",
    headers: {
      authorization: `Bearer ${key}`,
      "content-type": "application/json",
      "idempotency-key": idempotencyKey,
    },
    body,
  });

/** Those of the connection are not of the service. */
const ofConnection = ["connection", "date", "keep-alive"];
const headersOf = (response: Response) =>
  Object.fromEntries([...response.headers].filter(([name]) => !ofConnection.includes(name)));

/** Ids, digits and codes differ from call to call; the rest of a text does not. */
const shapeOf = (headers: Record<string, string>) =>
  Object.fromEntries(
    Object.entries(headers).map(([name, value]) => [
      name,
      value.replace(/req_[0-9a-z]{26}/, "req_").replace(/\d+/g, "0"),
    ]),
  );

test("docs/concepts.md: the response to a create request, and that to a read", async () => {
  const shown = jsonOf("docs/concepts.md", '"sms_text"');
  const sent = (await (await create(shop.testKey, "docs-concepts")).json()) as Record<string, string>;
  expect(Object.keys(shown)).toEqual(Object.keys(sent));
  const lastsMs = ({ created_at: from, expires_at: to }: Record<string, string>) =>
    Date.parse(to ?? "") - Date.parse(from ?? "");
  expect([lastsMs(shown), lastsMs(sent)]).toEqual([600_000, 600_000]);
  const code = /\d{8}/;
  const words = (text: string) => text.replace(/\[.*\]/, "[]").replace(code, "CODE");
  expect(words(shown.sms_text)).toBe(words(sent.sms_text ?? ""));
  for (const key of ["status", "environment", "mode", "client_reference", "state"]) {
    expect(shown[key], key).toBe(sent[key]);
  }
  const read = await fetch(`${service.httpUrl}/v1/verifications/${sent.id}`, {
    headers: { authorization: `Bearer ${shop.testKey}` },
  });
  expect([
    ...Object.keys((await read.json()) as object),
    "verification_url",
    "destination",
    "sms_text",
  ]).toEqual(Object.keys(shown));
});

test("docs/idempotency-and-errors.md: a replayed response", async () => {
  const first = await create(shop.testKey, "docs-replayed");
  const second = await create(shop.testKey, "docs-replayed");
  expect([first.status, first.headers.get("idempotent-replayed")]).toEqual([201, "false"]);
  expect(second.status).toBe(200);
  expect(shapeOf(shownResponse("docs/idempotency-and-errors.md", 200))).toEqual(shapeOf(headersOf(second)));
  expect(second.headers.get("ratelimit-policy")).toBe('"create";q=6000;w=60');
  expect(await second.text()).toBe(await first.text());
});

test("docs/idempotency-and-errors.md: a call beyond the limit of a minute", async () => {
  const limited = await service.createProject({ rateLimitPerMinute: 1 });
  await create(limited.testKey, "docs-limited-1");
  const refused = await create(limited.testKey, "docs-limited-2");
  expect(refused.status).toBe(429);
  const shown = shownResponse("docs/idempotency-and-errors.md", 429);
  expect(shapeOf(shown)).toEqual(shapeOf(headersOf(refused)));
  expect(shown.ratelimit).toContain(`;r=0;t=${shown["retry-after"]}`);
  const { error } = (await refused.json()) as { error: object };
  const { error: documented } = jsonOf("docs/idempotency-and-errors.md", "rate_limited");
  expect({ ...documented, request_id: "" }).toEqual({ ...error, request_id: "" });
});

test("docs/window.md: the server's two functions create and confirm", async () => {
  const { testKey, testNumber } = await service.createProject({
    parentOrigin: "https://shop.example",
    returnUrl: "https://shop.example/signup/phone",
  });
  const code = readPage("docs/window.md")
    .blocks.filter((block) => block.language === "js" && block.code.includes("async function"))
    .map((block) => block.code);
  expect(code).toHaveLength(2);
  const { begin, confirm } = runInThisContext(
    `(phoneproof, crypto) => { ${code.join("\n")}; return { begin: beginVerification, confirm: confirmVerification }; }`,
  )(createPhoneproof({ baseUrl: service.httpUrl, apiKey: testKey }), crypto);
  const session: { verification?: { id: string; state: string } } = {};
  const begun = await begin(session);
  expect(begun).toEqual({
    verificationUrl: expect.stringContaining("/v/"),
    state: session.verification?.state,
  });
  expect(await confirm(session)).toBeNull();
  const { rows } = await service.db.query(
    "SELECT destination, sms_text FROM verification WHERE destination = $1",
    [testNumber],
  );
  await service.sms({ to: rows[0].destination, text: rows[0].sms_text, from: "01012345678" });
  expect(await confirm(session)).toBe("01012345678");
});

test("docs/sms-ingestion.md: a receipt", () => {
  const { outcome, ...shown } = jsonOf("docs/sms-ingestion.md", '"outcome"');
  const receipt = { ...shown, outcome: `INBOUND_MESSAGE_OUTCOME_${outcome}` };
  const read = fromJson(InboundMessageReceiptSchema, receipt);
  expect(
    toJson(InboundMessageReceiptSchema, read, { useProtoFieldName: true, alwaysEmitImplicit: true }),
  ).toEqual(receipt);
});

test("docs/sms-ingestion.md: the names of carriers", () => {
  const rows = readPage("docs/sms-ingestion.md")
    .prose.split("\n")
    .map((line) => /^\| `(SKT|KT|LGU\+)` \| (.*) \| `(450-\d\d)` \|$/.exec(line))
    .filter((row) => row !== null);
  expect(rows).toHaveLength(3);
  for (const [, carrier, names = "", network = ""] of rows) {
    const listed = [...names.matchAll(/`([^`]+)`/g)].map(([, name = ""]) => name);
    for (const name of [...listed, network, network.replace("-", " "), network.replace("-", "")]) {
      expect(normaliseCarrier(name), name).toBe(carrier);
      expect(normaliseCarrier(name.toLowerCase()), name).toBe(carrier);
    }
    expect(normaliseCarrier(`${carrier}_MVNO`)).toBe(carrier);
    expect(normaliseCarrier(`EXAMPLE_${carrier}`)).toBe(carrier);
  }
});

test("docs/grpc.md: the response to a first call", async () => {
  const shown = jsonOf("docs/grpc.md", '"smsText"');
  const { projectId } = await service.createProject();
  const sent = await service
    .client(VerificationService)
    .createVerification({ projectId, environment: Environment.TEST, idempotencyKey: "docs-grpc" });
  const json = toJson(CreateVerificationResponseSchema, sent) as typeof shown;
  expect(Object.keys(shown)).toEqual(Object.keys(json));
  expect(Object.keys(shown.verification)).toEqual(Object.keys(json.verification));
  expect(fromJson(CreateVerificationResponseSchema, shown).verification?.projectId).toMatch(
    /^prj_[0-9a-z]{26}$/,
  );
});

test("packages/client/README.md: the handlers for Express and Next.js take what is signed, and nothing else", async () => {
  const [express = "", next = ""] = readPage("packages/client/README.md")
    .blocks.filter(({ language }) => language === "js")
    .map(({ code }) => code);
  const secrets = [`whsec_${Buffer.alloc(32, 3).toString("base64")}`];
  const stored: unknown[] = [];
  const store = async (id: string, event: { type: string }) => stored.push([id, event.type]);
  const body = '{"type":"verification.verified","data":{"id":"vrf_1"}}';
  const signed = signedHeaders({
    id: "evt_1",
    timestamp: Math.floor(Date.now() / 1000),
    body,
    secrets: [Buffer.alloc(32, 3)],
  });
  const bodies = [body, `${body} `];

  const handler = runInThisContext(
    `(verifyWebhook, secrets, store) => {
      let takes, handler;
      // Express leaves the body of a request of another type undefined.
      const express = { raw: ({ type }) => (request) => type === "application/json"
        ? request.headers["content-type"] === type
        : type(request) };
      const app = { post: (path, parser, given) => { takes = parser; handler = given; } };
      ${express}
      return (request, ...more) => handler(takes(request) ? request : { headers: request.headers }, ...more);
    }`,
  )(verifyWebhook, secrets, store);
  const statuses: number[] = [];
  const response = { sendStatus: (status: number) => statuses.push(status) };
  for (const text of bodies) {
    const headers = { ...signed, "content-type": "application/json" };
    await handler({ body: Buffer.from(text), headers }, response, expect.fail);
  }
  // A stranger's request must not look like a mistake of the receiver.
  const form = { "content-type": "application/x-www-form-urlencoded" };
  await handler({ body: Buffer.from("a=1"), headers: form }, response, expect.fail);
  expect(statuses).toEqual([204, 401, 401]);

  const post = runInThisContext(`(verifyWebhook, secrets, store, Response) => { ${next}; return POST; }`)(
    verifyWebhook,
    secrets,
    store,
    Response,
  );
  const answers = bodies.map((text) =>
    post(new Request("http://shop.example", { method: "POST", headers: { ...signed }, body: text })),
  );
  expect((await Promise.all(answers)).map(({ status }) => status)).toEqual([204, 401]);
  expect(stored).toEqual([
    ["evt_1", "verification.verified"],
    ["evt_1", "verification.verified"],
  ]);
});
