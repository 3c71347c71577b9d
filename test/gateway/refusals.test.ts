import { describe, expect, test } from "vitest";
import { ApiKeyService } from "../../src/gen/proto/phoneproof/v1/api_key_pb.ts";
import { DestinationNumberService } from "../../src/gen/proto/phoneproof/v1/destination_number_pb.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import { startTestService } from "../harness/service.ts";
import { type Answer, merchant, newIdempotencyKey, usageOf } from "./merchant.ts";

const service = await startTestService();
const project = await service.createProject();
const shop = merchant(service.httpUrl, project.testKey);
const projects = service.client(ProjectService);

function expectRefusal(answer: Answer, status: number, code: string): void {
  expect(answer).toMatchObject({ status, body: { error: { code } } });
  const { error } = answer.body;
  expect(Object.keys(answer.body)).toEqual(["error"]);
  expect(Object.keys(error)).toEqual(["code", "message", "request_id"]);
  expect(error.message).toMatch(/^[A-Z].{10}/);
  expect(answer.headers.get("x-request-id")).toBe(error.request_id);
  expect(answer.headers.get("content-type")).toBe("application/json; charset=utf-8");
  expect(answer.headers.get("cache-control")).toBe("no-store");
  expect(answer.headers.get("www-authenticate")).toBe(status === 401 ? "Bearer" : null);
  expect(answer.headers.has("retry-after")).toBe(status === 429 || status === 503);
}

const endpoints = [
  { name: "create", method: "POST", path: "/v1/verifications" },
  { name: "read", method: "GET", path: "/v1/verifications/vrf_none" },
  { name: "cancel", method: "POST", path: "/v1/verifications/vrf_none/cancel" },
];

describe("without a valid key", () => {
  const lastCharacter = project.testKey.at(-1);
  const unlike: { name: string; authorization: string }[] = [
    { name: "another scheme", authorization: "Basic dXNlcjpwYXNz" },
    { name: "the scheme without a key", authorization: "Bearer" },
    { name: "the key without a scheme", authorization: project.testKey },
    { name: "a key in quotes", authorization: `Bearer "${project.testKey}"` },
    { name: "a key followed by more", authorization: `Bearer ${project.testKey} x` },
    { name: "two keys", authorization: `Bearer ${project.testKey}, Bearer ${project.liveKey}` },
  ];
  const wrong: { name: string; authorization: string }[] = [
    {
      name: "a key with a typo",
      authorization: `Bearer ${project.testKey.slice(0, -1)}${lastCharacter === "0" ? "1" : "0"}`,
    },
    { name: "a truncated key", authorization: `Bearer ${project.testKey.slice(0, -1)}` },
    {
      name: "a key with the other environment's prefix",
      authorization: `Bearer ${project.testKey.replace("test", "live")}`,
    },
    { name: "an id instead of a key", authorization: `Bearer ${project.projectId}` },
    { name: "a very long key", authorization: `Bearer ${"a".repeat(8000)}` },
  ];
  test.for(endpoints)("$name is 401 missing_api_key", async ({ method, path }) => {
    const response = await fetch(service.httpUrl + path, { method });
    const text = await response.text();
    const answer = { status: response.status, headers: response.headers, text, body: JSON.parse(text) };
    expectRefusal(answer, 401, "missing_api_key");
    expect([...answer.headers.keys()].filter((name) => /usage|ratelimit/.test(name))).toEqual([]);
  });

  for (const { name: endpoint, method, path } of endpoints) {
    test.for([...unlike, ...wrong])(`${endpoint} with $name is 401`, async ({ name, authorization }) => {
      const answer = await shop.call(method, path, { headers: { authorization } });
      expectRefusal(answer, 401, "invalid_api_key");
      expect([...answer.headers.keys()].filter((header) => /usage|ratelimit/.test(header))).toEqual([]);
      const phrase = unlike.some((row) => row.name === name) ? "without quotes" : "mistyped";
      expect(answer.body.error.message).toContain(phrase);
    });
  }

  test.for(["bearer", "BEARER"])("the scheme may be written %s", async (scheme) => {
    const answer = await shop.call("GET", "/v1/verifications/vrf_none", {
      headers: { authorization: `${scheme} ${project.testKey}` },
    });
    expect(answer.status).toBe(404);
  });

  test("a revoked key becomes invalid in the process that revoked it", async () => {
    const { projectId, testKey } = await service.createProject();
    const revoked = merchant(service.httpUrl, testKey);
    expect((await revoked.create()).status).toBe(201);
    const keys = service.client(ApiKeyService);
    for (const { id } of (await keys.listApiKeys({ projectId })).apiKeys)
      await keys.revokeApiKey({ apiKeyId: id });
    await expect.poll(async () => (await revoked.create()).status).toBe(401);
    expectRefusal(await revoked.create(), 401, "invalid_api_key");
  });
});

test.for(endpoints)("a service token is refused: $name is 403 insufficient_scope", async ({
  method,
  path,
}) => {
  const token = await service.createToken({ scope: "admin" });
  const answer = await merchant(service.httpUrl, token).call(method, path);
  expectRefusal(answer, 403, "insufficient_scope");
  expect(usageOf(answer)).toBeNull();
});

describe("an unknown route or method", () => {
  const rows: { method: string; path: string }[] = [
    { method: "GET", path: "/" },
    { method: "GET", path: "/v1" },
    { method: "GET", path: "/v1/verifications" },
    { method: "GET", path: "/v1/verifications/" },
    { method: "POST", path: "/v1/verifications/" },
    { method: "PUT", path: "/v1/verifications" },
    { method: "DELETE", path: "/v1/verifications/vrf_none" },
    { method: "PATCH", path: "/v1/verifications/vrf_none" },
    { method: "POST", path: "/v1/verifications/vrf_none" },
    { method: "GET", path: "/v1/verifications/vrf_none/" },
    { method: "GET", path: "/v1/verifications/vrf_none/cancel" },
    { method: "POST", path: "/v1/verifications/vrf_none/cancel/" },
    { method: "POST", path: "/v1/verifications//cancel" },
    { method: "OPTIONS", path: "/v1/verifications" },
    { method: "GET", path: "/V1/verifications/vrf_none" },
    { method: "GET", path: "//v1/verifications/vrf_none" },
    { method: "GET", path: "/v2/verifications/vrf_none" },
    { method: "GET", path: "/favicon.ico" },
  ];
  test.for(rows)("$method $path is 404 with a key, and counted", async ({ method, path }) => {
    const answer = await shop.call(method, path);
    expectRefusal(answer, 404, "route_not_found");
    expect(usageOf(answer)).toMatch(/^\d+\/unlimited$/);
    expect(answer.headers.has("ratelimit")).toBe(true);
  });

  test("is 404 without a key, with a wrong one and with a service token, and not counted", async () => {
    const token = await service.createToken({ scope: "read" });
    for (const authorization of ["", "Bearer wrong", `Bearer ${token}`]) {
      const answer = await shop.call("GET", "/nowhere", { headers: { authorization } });
      expectRefusal(answer, 404, "route_not_found");
      expect([...answer.headers.keys()].filter((name) => /usage|ratelimit/.test(name))).toEqual([]);
    }
  });

  test("is 404 whatever its body is", async () => {
    const answer = await shop.call("POST", "/nowhere", {
      body: "{".repeat(100_000),
      headers: { "content-type": "application/json" },
    });
    expectRefusal(answer, 404, "route_not_found");
  });
});

test("a creation for a project without a receiving number is 503 no_receiving_number, and not counted", async () => {
  const { project: numberless } = await projects.createProject({ name: "Numberless" });
  const { secret } = await service
    .client(ApiKeyService)
    .createApiKey({ projectId: numberless?.id ?? "", environment: 2 });
  const answer = await merchant(service.httpUrl, secret).create();
  expectRefusal(answer, 503, "no_receiving_number");
  expect(answer.headers.get("retry-after")).toBe("30");
  expect(usageOf(answer)).toBeNull();
  expect(answer.headers.has("ratelimit")).toBe(true);
});

test("an internal fault is 503 internal_error without any detail of the fault", async () => {
  const broken = await startTestService();
  const { testKey } = await broken.createProject();
  const customer = merchant(broken.httpUrl, testKey);
  expect((await customer.create()).status).toBe(201);
  await broken.db.query("ALTER TABLE verification RENAME TO verification_elsewhere");
  for (const answer of [await customer.create(), await customer.read("vrf_01m7yrddhzfyja3hhg9my162t1")]) {
    expectRefusal(answer, 503, "internal_error");
    expect(answer.text).not.toMatch(/verification_elsewhere|relation|at .*\.ts/);
  }
  await broken.db.query("ALTER TABLE verification_elsewhere RENAME TO verification");
  expect((await customer.create()).status).toBe(201);
  await broken.close();
});

describe("the order of checks:", () => {
  const broken = { body: "{", headers: { "content-type": "text/plain" } };

  test("a wrong key before a malformed request", async () => {
    const answer = await shop.call("POST", "/v1/verifications", {
      ...broken,
      headers: { ...broken.headers, authorization: "Bearer wrong" },
    });
    expectRefusal(answer, 401, "invalid_api_key");
  });

  test("a suspended project before its limits and a malformed request", async () => {
    const { projectId, testKey } = await service.createProject({ usageLimit: 0n, rateLimitPerMinute: 1 });
    const suspended = merchant(service.httpUrl, testKey);
    expectRefusal(await suspended.create(), 429, "usage_limit_exceeded");
    await projects.suspendProject({ projectId });
    await expect
      .poll(async () => (await suspended.call("POST", "/v1/verifications", broken)).status)
      .toBe(403);
    for (const { method, path } of [...endpoints, { method: "GET", path: "/nowhere" }]) {
      const answer = await suspended.call(method, path, method === "GET" ? {} : broken);
      expectRefusal(answer, 403, "project_suspended");
      expect([...answer.headers.keys()].filter((name) => /usage|ratelimit/.test(name))).toEqual([]);
    }
    await projects.resumeProject({ projectId });
    await expect.poll(async () => (await suspended.read("vrf_none")).status).toBe(429);
  });

  test("the rate limit before the usage limit", async () => {
    const { testKey } = await service.createProject({ usageLimit: 0n, rateLimitPerMinute: 1 });
    const limited = merchant(service.httpUrl, testKey);
    expectRefusal(await limited.create(), 429, "usage_limit_exceeded");
    expectRefusal(await limited.create(), 429, "rate_limited");
  });

  test.for<{ name: string; init: RequestInit }>([
    { name: "headers", init: broken },
    {
      name: "JSON",
      init: {
        body: "{",
        headers: { "content-type": "application/json", "idempotency-key": "order-of-checks" },
      },
    },
    {
      name: "fields",
      init: {
        body: '{"x":1}',
        headers: { "content-type": "application/json", "idempotency-key": "order-of-checks" },
      },
    },
  ])("the usage limit before invalid $name", async ({ init }) => {
    const { testKey } = await service.createProject({ usageLimit: 0n });
    const limited = merchant(service.httpUrl, testKey);
    expectRefusal(await limited.call("POST", "/v1/verifications", init), 429, "usage_limit_exceeded");
  });

  test("the idempotency key before the content type, the content type before the JSON, the JSON before its fields", async () => {
    const send = (headers: Record<string, string>, body: string) =>
      shop.call("POST", "/v1/verifications", { headers, body });
    const key = { "idempotency-key": newIdempotencyKey() };
    const json = { "content-type": "application/json" };
    expectRefusal(await send({ "content-type": "text/plain" }, "{"), 400, "idempotency_key_required");
    expectRefusal(await send({ ...json, "idempotency-key": "" }, "{"), 400, "idempotency_key_required");
    expectRefusal(await send({ ...json, "idempotency-key": "short" }, "{"), 400, "idempotency_key_invalid");
    expectRefusal(await send({ ...key, "content-type": "text/plain" }, "{"), 400, "unsupported_content_type");
    expectRefusal(await send({ ...key, ...json }, "{"), 400, "invalid_json");
    expect((await send({ ...key, ...json }, '{"x":1}')).status).toBe(422);
  });

  test("the fields before idempotency, idempotency before the receiving number", async () => {
    const { testKey, testNumber } = await service.createProject();
    const customer = merchant(service.httpUrl, testKey);
    const key = newIdempotencyKey();
    const first = await customer.create({}, key);
    expect((await customer.create({ state: 7 }, key)).status).toBe(422);
    await service.client(DestinationNumberService).removeDestinationNumber({ number: testNumber });
    await expect.poll(async () => (await customer.create()).status).toBe(503);
    expect((await customer.create({}, key)).text).toBe(first.text);
    expectRefusal(await customer.create({ state: "other" }, key), 409, "idempotency_conflict");
  });
});
