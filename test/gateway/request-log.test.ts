import { once } from "node:events";
import net from "node:net";
import { type CallOptions, type Client, createClient } from "@connectrpc/connect";
import { pino } from "pino";
import { afterAll, expect, onTestFinished, test, vi } from "vitest";
import { parseConfig } from "../../src/config.ts";
import { newCredential } from "../../src/core/credential.ts";
import { decodeId } from "../../src/core/ids.ts";
import { ApiKeyService } from "../../src/gen/proto/phoneproof/v1/api_key_pb.ts";
import { ErasureService } from "../../src/gen/proto/phoneproof/v1/erasure_pb.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import {
  ServiceTokenScope,
  ServiceTokenService,
} from "../../src/gen/proto/phoneproof/v1/service_token_pb.ts";
import { VerificationHistoryService } from "../../src/gen/proto/phoneproof/v1/verification_history_pb.ts";
import {
  Environment,
  VerificationMode,
  VerificationService,
} from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { WebhookService } from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { startService } from "../../src/service.ts";
import { hintChannel } from "../../src/storage/transition.ts";
import { transportTo } from "../harness/grpc-transport.ts";
import { startTestService } from "../harness/service.ts";
import { suppressTimers } from "../harness/timers.ts";
import { answerOf } from "../rpc/grpc-answer.ts";
import { connectRaw } from "../rpc/raw-grpc.ts";
import { merchant } from "./merchant.ts";
import { exchange } from "./raw-http.ts";

type Line = Record<string, unknown>;

const service = await startTestService();
const { projectId, testKey } = await service.createProject();

/** A second service on the same database, whose log the tests read. */
const lines: string[] = [];
const logging = await startService(
  parseConfig({
    PORT: "0",
    GRPC_PORT: "0",
    OPS_PORT: "0",
    DATABASE_URL: service.databaseUrl,
    PHONEPROOF_ADMIN_TOKEN: service.adminToken,
  }),
  pino({ level: "info", base: null, timestamp: false }, { write: (line) => lines.push(line) }),
);
afterAll(() => logging.close());
const httpUrl = logging.addresses.http.replace("localhost", "127.0.0.1");
const shop = merchant(httpUrl, testKey);

/** The lines about a request, once the one for the request itself is there: it is written after the answer was sent. */
async function linesOf(requestId: string | null): Promise<Line[]> {
  const found = () =>
    lines.filter((line) => line.includes(`"${requestId}"`)).map((line) => JSON.parse(line) as Line);
  await expect.poll(() => found().some(({ msg }) => msg === "request")).toBe(true);
  return found();
}

const { apiKeys } = await service.client(ApiKeyService).listApiKeys({ projectId });
const testKeyId = apiKeys.find(({ environment }) => environment === Environment.TEST)?.id;

/** The fields that identify the caller, down to the key. */
const caller = { projectId, apiKeyId: testKeyId, environment: "test" };

const { serviceToken, secret: tokenSecret } = await service
  .client(ServiceTokenService)
  .createServiceToken({ scope: ServiceTokenScope.INGEST, source: "gateway-1" });

/** The fields that identify a service token. */
const token = { tokenId: serviceToken?.id, scope: "ingest", source: "gateway-1" };

const route = "/v1/verifications/:verification_id";
const unknownKey = newCredential("live");

test.for<{ name: string; call: () => ReturnType<typeof shop.read>; line: Line }>([
  {
    name: "a creation",
    call: () =>
      shop.create({ mode: "match", expected_phone: "010-7777-8888", client_reference: "secret-reference" }),
    line: {
      ...{ method: "POST", route: "/v1/verifications", status: 201, ...caller },
      verificationId: expect.stringMatching(/^vrf_[0-9a-z]{26}$/),
    },
  },
  {
    name: "a creation with wrong fields",
    call: () =>
      shop.create({ mode: "match", expected_phone: "010-7777-888", "secret-field": 1, "secret-too": 2 }),
    line: {
      ...{ method: "POST", route: "/v1/verifications", status: 422, ...caller, code: "validation_failed" },
      fields: ["(unknown)", "expected_phone"],
    },
  },
  {
    name: "a read",
    call: () => shop.read("secret-id?token=secret-query"),
    line: { method: "GET", route, status: 404, ...caller, code: "verification_not_found" },
  },
  {
    name: "a read of a verification that does not exist",
    call: () => shop.read("vrf_01kaex4mpyf2xbtyt1s6vdr4e9"),
    line: {
      ...{ method: "GET", route, status: 404, ...caller, code: "verification_not_found" },
      verificationId: "vrf_01kaex4mpyf2xbtyt1s6vdr4e9",
    },
  },
  {
    name: "a cancel",
    call: () => shop.cancel("secret-id", { body: "secret-body" }),
    line: {
      method: "POST",
      route: `${route}/cancel`,
      status: 404,
      ...caller,
      code: "verification_not_found",
    },
  },
  {
    name: "a failed authentication",
    call: () => shop.call("GET", "/v1/verifications/x", { headers: { authorization: "Bearer secret-key" } }),
    line: { method: "GET", route, status: 401, code: "invalid_api_key" },
  },
  {
    name: "a call with a well-formed key that is unknown, revoked or expired",
    call: () =>
      shop.call("GET", "/v1/verifications/x", { headers: { authorization: `Bearer ${unknownKey}` } }),
    line: { method: "GET", route, status: 401, code: "invalid_api_key", keyEnding: unknownKey.slice(-4) },
  },
  {
    name: "a call with a service token",
    call: () =>
      shop.call("GET", "/v1/verifications/x", {
        headers: { authorization: `Bearer ${tokenSecret}` },
      }),
    line: { method: "GET", route, status: 403, code: "insufficient_scope", ...token },
  },
  {
    name: "a call of an unknown route with a service token",
    call: () => shop.call("GET", "/secret-path", { headers: { authorization: `Bearer ${tokenSecret}` } }),
    line: { method: "GET", status: 404, code: "route_not_found", ...token },
  },
  {
    name: "a call with the installation's admin token",
    call: () =>
      shop.call("GET", "/v1/verifications/x", {
        headers: { authorization: `Bearer ${service.adminToken}` },
      }),
    line: {
      ...{ method: "GET", route, status: 403, code: "insufficient_scope" },
      ...{ tokenId: "installation", scope: "admin", source: "cli" },
    },
  },
  {
    name: "an unknown route",
    call: () => shop.call("DELETE", "/secret-path"),
    line: { method: "DELETE", status: 404, ...caller, code: "route_not_found" },
  },
  {
    name: "an undecodable path",
    call: () => shop.call("GET", "/secret-path/%ZZ"),
    line: { method: "GET", status: 400, code: "malformed_request" },
  },
])("$name writes one line with a fixed set of fields and no secrets", async ({ call, line }) => {
  const before = lines.length;
  const { headers } = await call();
  const requestId = headers.get("x-request-id");
  const durationMs = expect.any(Number);
  expect(await linesOf(requestId)).toEqual([{ level: 30, requestId, durationMs, msg: "request", ...line }]);
  // Ids are random and may contain any digits.
  const withoutIds = lines
    .slice(before)
    .join("")
    .replaceAll(/\b(req|prj|key|vrf)_[0-9a-z]+/g, "");
  expect(withoutIds).not.toMatch(/secret|7777|pp_test_|pp_live_/);
});

test("invalid HTTP writes one line", async () => {
  const [answer] = await exchange(httpUrl, "secret\r\n\r\n");
  const requestId = answer?.headers.get("x-request-id") ?? null;
  const line = { level: 30, requestId, status: 400, code: "malformed_request", msg: "request" };
  expect(await linesOf(requestId)).toEqual([line]);
});

test("a malformed body writes one line", async () => {
  const head = `POST /v1/verifications HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${testKey}\r\n`;
  const body =
    "Content-Type: application/json\r\nIdempotency-Key: request-log\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n";
  const [answer] = await exchange(httpUrl, head + body);
  const found = await linesOf(answer?.headers.get("x-request-id") ?? null);
  expect(found).toHaveLength(1);
  expect(found[0]).toMatchObject({ route: "/v1/verifications", status: 400, code: "malformed_request" });
});

test.for([
  { name: "", table: "verification", send: () => shop.read("vrf_01m7yrddhzfyja3hhg9my162t1") },
  {
    name: " that the look-up of a key meets, also for an unknown route,",
    table: "api_key",
    send: () => merchant(httpUrl, newCredential("live")).call("GET", "/v1/nowhere"),
  },
  { name: " that the charge of a refused call meets", table: "usage", send: () => shop.create("{") },
])("an internal fault$name also writes a line with its stack", async ({ table, send }) => {
  await service.db.query(`ALTER TABLE ${table} RENAME TO elsewhere`);
  const { headers } = await send();
  await service.db.query(`ALTER TABLE elsewhere RENAME TO ${table}`);
  const requestId = headers.get("x-request-id");
  expect(await linesOf(requestId)).toEqual([
    {
      level: 50,
      requestId,
      err: expect.objectContaining({ stack: expect.stringContaining("\n    at ") }),
      msg: "internal error",
    },
    expect.objectContaining({ level: 30, status: 503, code: "internal_error" }),
  ]);
});

test("a fault of the window asks to open it again later, and is logged like one of the API", async () => {
  const { id, verification_url: url } = (await shop.create()).body;
  const followed = await fetch(`${url}/events`);
  await service.db.query("ALTER TABLE verification RENAME TO verification_elsewhere");
  await service.db.query("SELECT pg_notify($1, $2)", [hintChannel, decodeId("vrf_", id)]);
  const page = await fetch(url, { headers: { "accept-language": "en" } });
  const status = await fetch(`${url}/status`, { headers: { accept: "application/json" } });
  const events = await fetch(`${url}/events`, { headers: { accept: "application/json" } });
  // It ends, and the window opens another one. Before the table is back: the notification may take longer than those answers.
  expect(await followed.text()).toContain("event: state");
  await service.db.query("ALTER TABLE verification_elsewhere RENAME TO verification");
  expect(await linesOf(followed.headers.get("x-request-id"))).toMatchObject([
    { level: 50, msg: "internal error" },
    { level: 30, status: 200 },
  ]);
  expect(await page.text()).toContain("Open this page again in a moment.");
  for (const answer of [status, events]) {
    expect(await answer.json()).toMatchObject({ error: { code: "internal_error" } });
  }
  for (const answer of [page, status, events]) {
    expect([answer.status, answer.headers.get("retry-after")]).toEqual([503, "5"]);
    expect(await linesOf(answer.headers.get("x-request-id"))).toMatchObject([
      { level: 50, msg: "internal error" },
      { level: 30, status: 503, code: "internal_error" },
    ]);
  }
});

/** Sends a request that waits for the database until it is let go. */
async function heldRequest(send: () => void): Promise<{ unlock: () => Promise<void> }> {
  const lock = await service.db.connect();
  await lock.query("BEGIN; LOCK TABLE verification");
  const { rows } = await lock.query("SELECT pg_backend_pid() AS pid");
  const unlock = async () => {
    await lock.query("ROLLBACK");
    lock.release();
  };
  send();
  // The service's own jobs may be waiting too, but their statements do not contain this word.
  const blocked = `SELECT FROM pg_stat_activity
    WHERE $1 = ANY(pg_blocking_pids(pid)) AND query LIKE '%charged%'`;
  try {
    await expect.poll(async () => (await service.db.query(blocked, [rows[0].pid])).rowCount).toBe(1);
  } catch (error) {
    await unlock();
    throw error;
  }
  return { unlock };
}

const someId = "vrf_01m7yrddhzfyja3hhg9my162t1";

test("a client that disconnects before its answer leaves a line without a status, with how long it was served", async () => {
  const { hostname, port } = new URL(httpUrl);
  const before = lines.length;
  const startedAt = performance.now();
  const socket = net.connect(Number(port), hostname);
  const { unlock } = await heldRequest(() => {
    const head = `Host: x\r\nAuthorization: Bearer ${testKey}\r\n`;
    socket.write(`GET /v1/verifications/${someId} HTTP/1.1\r\n${head}\r\n`);
  });
  try {
    socket.resetAndDestroy();
    // The service's own jobs may write lines meanwhile.
    const requests = () =>
      lines
        .slice(before)
        .map((line) => JSON.parse(line) as Line)
        .filter(({ msg }) => msg === "request");
    await expect.poll(requests).toMatchObject([{ method: "GET", route, status: null }]);
    expect(requests()[0]?.durationMs).toBeLessThanOrEqual(performance.now() - startedAt);
  } finally {
    await unlock();
  }
});

test("a client that breaks off a form of the window is no fault", async () => {
  const { verification_url: url } = (await shop.create()).body;
  const before = lines.length;
  const { hostname, port } = new URL(httpUrl);
  const socket = net.connect(Number(port), hostname);
  onTestFinished(() => void socket.destroy());
  socket.write(
    `POST ${new URL(url).pathname}/messages HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n` +
      "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\n",
  );
  await once(socket, "data");
  socket.resetAndDestroy();
  const since = () =>
    lines
      .slice(before)
      .map((line) => JSON.parse(line) as Line)
      .filter(({ msg }) => msg === "request" || msg === "internal error");
  await expect.poll(since).toMatchObject([{ msg: "request", route: "/v/:token/messages", status: null }]);
});

test("the log names the key of a suspended project's call, over REST and gRPC", async () => {
  const suspended = await service.createProject();
  await service.client(ProjectService).suspendProject({ projectId: suspended.projectId });
  const refused = merchant(httpUrl, suspended.testKey);
  await expect.poll(async () => (await refused.read("vrf_none")).status).toBe(403);
  const { headers } = await refused.read("vrf_none");
  const whose = {
    projectId: suspended.projectId,
    apiKeyId: expect.stringMatching(/^key_/),
    environment: "test",
    code: "project_suspended",
  };
  expect(await linesOf(headers.get("x-request-id"))).toMatchObject([{ status: 403, ...whose }]);

  const call = connectRaw(logging.addresses.grpc).call("phoneproof.v1.VerificationService/GetVerification", {
    authorization: `Bearer ${suspended.testKey}`,
  });
  call.halfClose();
  const { "x-request-id": requestId } = await call.trailers;
  const rpcLine = () => lines.find((line) => line.includes(`"${requestId}"`));
  await expect.poll(rpcLine).toBeDefined();
  expect(JSON.parse(rpcLine() ?? "")).toMatchObject({ msg: "rpc", ...whose });
});

test("the log names whose call the rate limit refused", async () => {
  const limited = await service.createProject({ rateLimitPerMinute: 1 });
  const hasty = merchant(httpUrl, limited.testKey);
  const { headers } = await vi.waitUntil(
    async () => {
      const read = await hasty.read("vrf_none");
      return read.status === 429 && read;
    },
    { timeout: 45_000 },
  );
  expect(await linesOf(headers.get("x-request-id"))).toMatchObject([
    { status: 429, projectId: limited.projectId, environment: "test", code: "rate_limited" },
  ]);
});

/** The log's line of a call over gRPC. */
async function rpcLineOf(call: (options: CallOptions) => Promise<unknown>): Promise<Line> {
  const startedAt = performance.now();
  const { requestId } = await answerOf(call);
  const tookMs = performance.now() - startedAt;
  const line = () => lines.find((one) => one.includes(`"${requestId}"`));
  await expect.poll(line).toBeDefined();
  const logged = JSON.parse(line() ?? "") as Line;
  // It is rounded to tenths.
  expect(logged.durationMs).toBeLessThanOrEqual(tookMs + 0.1);
  return logged;
}

test("the log names the verification whose history an administrator asks for, or whose phone they erase", async () => {
  const verificationId = "vrf_01kaex4mpyf2xbtyt1s6vdr4e9";
  const named = { code: "verification_not_found", tokenId: "installation", verificationId };
  const transport = transportTo(logging.addresses.grpc, `Bearer ${service.adminToken}`);
  const histories = createClient(VerificationHistoryService, transport);
  const erasures = createClient(ErasureService, transport);
  expect(
    await rpcLineOf((options) => histories.getVerificationHistory({ verificationId }, options)),
  ).toMatchObject(named);
  expect(await rpcLineOf((options) => erasures.eraseVerification({ verificationId }, options))).toMatchObject(
    named,
  );
});

test("the log names the project that a service token's call is about, and the address it came from", async () => {
  const transport = transportTo(logging.addresses.grpc, `Bearer ${service.adminToken}`);
  const verifications = createClient(VerificationService, transport);
  const webhooks = createClient(WebhookService, transport);
  const asked = { projectId, tokenId: "installation", address: "127.0.0.1" };
  for (const call of [
    (options: CallOptions) => verifications.listVerifications({ projectId }, options),
    (options: CallOptions) => webhooks.listWebhookDeliveries({ projectId }, options),
    (options: CallOptions) => verifications.createVerification({ projectId }, options),
  ]) {
    expect(await rpcLineOf(call)).toMatchObject(asked);
  }
  const misnamed = await rpcLineOf((options) =>
    verifications.listVerifications({ projectId: "prj_secret" }, options),
  );
  expect(misnamed).not.toHaveProperty("projectId");
});

test("of a merchant's call over gRPC the log has the project of its key, whichever the call names, and no address", async () => {
  const other = await service.createProject();
  const transport = transportTo(logging.addresses.grpc, `Bearer ${testKey}`);
  const verifications = createClient(VerificationService, transport);
  const line = await rpcLineOf((options) =>
    verifications.listVerifications({ projectId: other.projectId }, options),
  );
  expect(line).toMatchObject({ code: "insufficient_scope", projectId: caller.projectId });
  expect(line).not.toHaveProperty("address");
});

test("over gRPC, too, the log names the verification, the caller, an unknown key's ending, the fields and how long the call took", async () => {
  const lineOf = async (
    credential: string,
    call: (client: Client<typeof VerificationService>, options: CallOptions) => Promise<unknown>,
  ) => {
    const transport = transportTo(logging.addresses.grpc, `Bearer ${credential}`);
    const client = createClient(VerificationService, transport);
    return rpcLineOf((options) => call(client, options));
  };
  const verificationId = "vrf_01kaex4mpyf2xbtyt1s6vdr4e9";
  expect(
    await lineOf(testKey, (client, options) => client.getVerification({ verificationId }, options)),
  ).toMatchObject({ code: "verification_not_found", verificationId });
  expect(
    await lineOf(testKey, (client, options) =>
      client.getVerification({ verificationId: "vrf_secret" }, options),
    ),
  ).not.toHaveProperty("verificationId");
  expect(
    await lineOf(unknownKey, (client, options) => client.getVerification({ verificationId }, options)),
  ).toMatchObject({ code: "invalid_api_key", keyEnding: unknownKey.slice(-4) });
  const wrong = {
    idempotencyKey: "request-log",
    mode: VerificationMode.MATCH,
    expectedPhone: "010-7777-888",
  };
  expect(await lineOf(testKey, (client, options) => client.createVerification(wrong, options))).toMatchObject(
    { code: "validation_failed", fields: ["expected_phone"] },
  );

  const tokens = service.client(ServiceTokenService);
  const { serviceToken, secret } = await tokens.createServiceToken({
    scope: ServiceTokenScope.INGEST,
    source: "log",
  });
  const read: Parameters<typeof lineOf>[1] = (client, options) =>
    client.getVerification({ verificationId }, options);
  expect(await lineOf(service.adminToken, read)).toMatchObject({ tokenId: "installation", scope: "admin" });
  expect(await lineOf(secret, read)).toMatchObject({
    ...{ code: "insufficient_scope", tokenId: serviceToken?.id },
    ...{ scope: "ingest", source: "log" },
  });
});

test("over gRPC, too, the log names no field that the message does not have, which is the client's own text", async () => {
  const connection = connectRaw(logging.addresses.grpc);
  onTestFinished(() => connection.destroy());
  const call = connection.call(`${VerificationService.typeName}/CreateVerification`, {
    "content-type": "application/grpc+json",
    authorization: `Bearer ${testKey}`,
  });
  await call.send(Buffer.from('{"mode":1.5,"01012345678":1,"pp_live_x":2}'));
  call.halfClose();
  const { detail } = await call.status;
  expect(detail?.fields.map(({ field }) => field)).toEqual(["mode", "01012345678", "pp_live_x"]);
  const line = () => lines.find((one) => one.includes(`"${detail?.requestId}"`));
  await expect.poll(line).toBeDefined();
  expect(JSON.parse(line() ?? "")).toMatchObject({
    code: "validation_failed",
    fields: ["mode", "(unknown)"],
  });
});

test.for([
  {
    face: "the merchants' API",
    path: "/v1/verifications",
    route: "/v1/verifications",
    type: "application/json",
  },
  {
    face: "the window",
    path: "/v/a-token/messages",
    route: "/v/:token/messages",
    type: "application/x-www-form-urlencoded",
  },
])("a client of $face that disconnects in the middle of its body is not logged as a fault", async ({
  path,
  route,
  type,
}) => {
  const { hostname, port } = new URL(httpUrl);
  const before = lines.length;
  const socket = net.connect(Number(port), hostname);
  const head = `Host: x\r\nAuthorization: Bearer ${testKey}\r\nIdempotency-Key: amid-its-body\r\n`;
  const body = `Content-Type: ${type}\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n`;
  socket.write(`POST ${path} HTTP/1.1\r\n${head}${body}`);
  // The service has asked for the body.
  await once(socket, "data");
  socket.resetAndDestroy();
  const since = () => lines.slice(before).map((line) => JSON.parse(line) as Line);
  await expect
    .poll(() => since().filter(({ msg }) => msg === "request"))
    .toMatchObject([{ method: "POST", route, status: null }]);
  await linesOf((await shop.read(someId)).headers.get("x-request-id"));
  expect(since().filter(({ msg }) => msg === "internal error")).toEqual([]);
});

// Idle connections are kept for seventy-five seconds: a service that waited for them would exceed this timeout.
test(
  "an answer in progress is finished before the service ends, and its connection does not delay that",
  {
    timeout: 60_000,
  },
  async () => {
    const other = await service.startAnother();
    let underWay: ReturnType<typeof shop.read> | undefined;
    const { unlock } = await heldRequest(() => {
      underWay = merchant(other.httpUrl, testKey).read(someId);
    });
    // The time after which the service cuts remaining connections.
    suppressTimers(5_000);
    const closed = other.close();
    await unlock();
    expect((await underWay)?.status).toBe(404);
    await closed;
  },
);

test("a window's refusal is logged with its code, as that of a merchant's call is", async () => {
  const { headers } = await fetch(`${httpUrl}/v/wrong`);
  const id = headers.get("x-request-id");
  expect(await linesOf(id)).toMatchObject([{ route: "/v/:token", status: 404, code: "not_found" }]);
});
