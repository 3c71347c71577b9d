import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { once } from "node:events";
import type { IncomingMessage } from "node:http";
import net from "node:net";
import type { FastifyRequest } from "fastify";
import { describe, expect, onTestFinished, test, vi } from "vitest";
import { decodeId } from "../../src/core/ids.ts";
import { pauseReading } from "../../src/gateway/paused-sockets.ts";
import { startTestService } from "../harness/service.ts";
import { scrape } from "../ops/scrape.ts";
import { untilWaiting } from "../service/barrier.ts";
import { type AnswerBody, merchant, newIdempotencyKey, usageOf } from "./merchant.ts";
import { exchange, type RawAnswer } from "./raw-http.ts";

const contractStatuses = [200, 201, 400, 401, 403, 404, 409, 422, 429, 503];

const service = await startTestService();
const { testKey } = await service.createProject();
const authorised = `Host: localhost\r\nAuthorization: Bearer ${testKey}\r\n`;

function errorOf(answer: RawAnswer): AnswerBody["error"] {
  return (JSON.parse(answer.body) as AnswerBody).error;
}

function expectApiError(answer: RawAnswer | undefined, status: number, code: string): void {
  expect(answer).toMatchObject({ status });
  if (answer === undefined) return;
  expect(contractStatuses).toContain(answer.status);
  const error = errorOf(answer);
  expect(JSON.parse(answer.body)).toEqual({
    error: { code, message: expect.any(String), request_id: expect.stringMatching(/^req_[0-9a-z]{26}$/) },
  });
  expect(answer.headers.get("x-request-id")).toBe(error.request_id);
  expect(answer.headers.get("content-type")).toBe("application/json; charset=utf-8");
  expect(answer.headers.get("cache-control")).toBe("no-store");
}

/** The service's socket of the next connection that requests this path. */
function connectionOf(path: string): Promise<net.Socket> {
  return new Promise((resolve) => {
    const look = (message: unknown) => {
      const { request, socket } = message as { request: IncomingMessage; socket: net.Socket };
      if (request.url !== path) return;
      unsubscribe("http.server.request.start", look);
      resolve(socket);
    };
    subscribe("http.server.request.start", look);
  });
}

async function statusesOf(socket: net.Socket) {
  const pieces: Buffer[] = [];
  for await (const piece of socket) pieces.push(piece);
  const text = Buffer.concat(pieces).toString("latin1");
  return text.match(/HTTP\/1\.1 \d+/g);
}

/** Resolves when the service gives up waiting for the rest of a request on this socket of its own. */
function timeoutOf(socket: net.Socket): Promise<void> {
  const { server } = socket as net.Socket & { readonly server: net.Server };
  return new Promise((resolve) => {
    const look = (_error: Error, timedOut: unknown) => {
      if (timedOut !== socket) return;
      server.off("clientError", look);
      resolve();
    };
    server.on("clientError", look);
  });
}

/** Takes a lock that holds up charging; the result releases it, and so does the end of the test. */
async function lockUsage(
  statement: string,
  onEnd: (release: () => Promise<void>) => void,
): Promise<() => Promise<void>> {
  const connection = await service.db.connect();
  let held = true;
  const unlock = async () => {
    if (!held) return;
    held = false;
    await connection.query("ROLLBACK");
    connection.release();
  };
  onEnd(unlock);
  await connection.query("BEGIN");
  await connection.query(statement);
  return unlock;
}

const last = "Connection: close\r\n";
const json = "Content-Type: application/json\r\nIdempotency-Key: hostile-1\r\n";
const get = "GET /v1/verifications/vrf_none HTTP/1.1\r\n";
const create = "POST /v1/verifications HTTP/1.1\r\n";
const cancel = "POST /v1/verifications/vrf_none/cancel HTTP/1.1\r\n";

interface Row {
  name: string;
  request: string;
  status: number;
  code: string;
}

describe("invalid HTTP gets 400 malformed_request:", () => {
  const rows: { name: string; request: string; says?: string }[] = [
    { name: "bytes of another protocol", request: "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" },
    { name: "a request line without a version", request: "GET /\r\n\r\n" },
    { name: "an unknown method without a version", request: "BREW /\r\n\r\n" },
    { name: "an unknown method of another version", request: `BREW / HTTP/2.0\r\n${authorised}\r\n` },
    { name: "a line without a method", request: ` / HTTP/1.1\r\n${authorised}\r\n` },
    { name: "a method that is not a token", request: `G@T / HTTP/1.1\r\n${authorised}\r\n` },
    { name: "plain words", request: "how do you do", says: "The request is not valid HTTP" },
    { name: "HTTP/2's preface", request: "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" },
    { name: "version 2.0", request: `GET / HTTP/2.0\r\n${authorised}\r\n` },
    { name: "version 0.9", request: `GET / HTTP/0.9\r\n${authorised}\r\n` },
    { name: "version 1.2", request: `GET / HTTP/1.2\r\n${authorised}\r\n` },
    {
      name: "no Host",
      request: `${get}${last}\r\n`,
      says: "The Host header is missing or is not a host name or address",
    },
    {
      name: "two Hosts",
      request: `${get}${authorised}HOST: localhost\r\n${last}\r\n`,
      says: "A header is repeated",
    },
    { name: "two Hosts in HTTP/1.0", request: `GET / HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n` },
    {
      name: "a Host of two words",
      request: `${get}Host: a b\r\n${last}\r\n`,
      says: "The Host header is missing or is not a host name or address",
    },
    {
      name: "a Host with a path",
      request: `${get}Host: a/b?c@d\r\n${last}\r\n`,
      says: "The Host header is missing or is not a host name or address",
    },
    { name: "a Host with an invalid port", request: `${get}Host: a:b\r\n${last}\r\n` },
    { name: "a Host that is not ASCII", request: `${get}Host: caf\xe9\r\n${last}\r\n` },
    {
      name: "two Authorizations",
      request: `${get}${authorised}authorization: Bearer ${testKey}\r\n${last}\r\n`,
      says: "A header is repeated",
    },
    {
      name: "two Content-Types",
      request: `${create}${authorised}${json}content-type: text/plain\r\nContent-Length: 2\r\n${last}\r\n{}`,
      says: "A header is repeated",
    },
    { name: "lines that end in LF only", request: "GET / HTTP/1.1\nHost: localhost\n\n" },
    { name: "a space in a header's name", request: `${get}${authorised}Bad Name: 1\r\n\r\n` },
    { name: "NUL in a header", request: `${get}${authorised}Name: a\0b\r\n\r\n` },
    { name: "a folded header", request: `${get}${authorised}Name: a\r\n b\r\n\r\n` },
    { name: "a path without a slash", request: `GET v1 HTTP/1.1\r\n${authorised}\r\n` },
    { name: "NUL in the path", request: `GET /v1/\0 HTTP/1.1\r\n${authorised}\r\n` },
    { name: "bytes over 127 in the path", request: `GET /v1/\xff\xfe HTTP/1.1\r\n${authorised}\r\n` },
    {
      name: "a % without two hexadecimal digits",
      request: `GET /v1/%ZZ HTTP/1.1\r\n${authorised}${last}\r\n`,
      says: "The path has a % without two hexadecimal digits",
    },
    {
      name: "a URL over the limit",
      request: `GET /${"a".repeat(20_000)} HTTP/1.1\r\n${authorised}\r\n`,
    },
    {
      name: "a header over the limit",
      request: `${get}${authorised}Name: ${"a".repeat(20_000)}\r\n\r\n`,
    },
    {
      name: "2,500 headers before the Host",
      request: `${get}${"a:b\r\n".repeat(2500)}${authorised}${last}\r\n`,
    },
    {
      name: "Content-Length beside Transfer-Encoding",
      request: `${create}${authorised}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`,
    },
    {
      name: "two Content-Lengths",
      request: `${create}${authorised}Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd`,
    },
    { name: "a negative Content-Length", request: `${create}${authorised}Content-Length: -1\r\n\r\n` },
    {
      name: "a Content-Length of thirty digits",
      request: `${create}${authorised}Content-Length: ${"9".repeat(30)}\r\n\r\n`,
    },
    {
      name: "a Content-Length of letters",
      request: `${create}${authorised}Content-Length: abc\r\n\r\n`,
    },
    {
      name: "a Transfer-Encoding that is not chunked",
      request: `${create}${authorised}Transfer-Encoding: gzip\r\n\r\n`,
    },
    {
      name: "a Transfer-Encoding of xchunked",
      request: `${create}${authorised}Transfer-Encoding: xchunked\r\n\r\n`,
    },
    ...["gzip, chunked", "foo, Chunked"].map((coding) => ({
      name: `a Transfer-Encoding of ${coding}`,
      request: `${create}${authorised}${json}Transfer-Encoding: ${coding}\r\n\r\n2\r\n{}\r\n0\r\n\r\n`,
      says: "Transfer-Encoding",
    })),
    {
      name: "a Transfer-Encoding in HTTP/1.0",
      request: `${create.replace("1.1", "1.0")}${authorised}${json}Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n`,
      says: "Transfer-Encoding",
    },
    {
      name: "a chunk without a length",
      request: `${create}${authorised}${json}Transfer-Encoding: chunked\r\n\r\nZZ\r\n`,
    },
    {
      name: "a chunk longer than it says",
      request: `${create}${authorised}${json}Transfer-Encoding: chunked\r\n\r\n1\r\n{}\r\n0\r\n\r\n`,
    },
    {
      name: "a chunk's extension over the limit",
      request: `${create}${authorised}${json}Transfer-Encoding: chunked\r\n\r\n2;${"a".repeat(20_000)}\r\n{}\r\n0\r\n\r\n`,
    },
  ];
  test.for(rows)("$name", async ({ request, says = "" }) => {
    const answers = await exchange(service.httpUrl, request);
    expect(answers).toHaveLength(1);
    expectApiError(answers[0], 400, "malformed_request");
    expect(JSON.parse(answers[0]?.body ?? "").error.message).toContain(says);
  });
});

test.for([
  { version: "1.1", coding: "gzip, chunked" },
  { version: "1.0", coding: "chunked" },
])("nothing behind a request of HTTP/$version with the transfer coding $coding is carried out", async ({
  version,
  coding,
}) => {
  const { testKey } = await service.createProject();
  const head = `POST /v1/verifications HTTP/${version}\r\nHost: localhost\r\nConnection: keep-alive\r\nAuthorization: Bearer ${testKey}\r\nContent-Type: application/json\r\n`;
  const [first, behind] = [newIdempotencyKey(), newIdempotencyKey()];
  const answers = await exchange(
    service.httpUrl,
    `${head}Idempotency-Key: ${first}\r\nTransfer-Encoding: ${coding}\r\n\r\n2\r\n{}\r\n0\r\n\r\n${head}Idempotency-Key: ${behind}\r\nContent-Length: 2\r\n\r\n{}`,
  );
  expect(answers.map(({ status }) => status)).toEqual([400]);
  expect((await merchant(service.httpUrl, testKey).create({}, behind)).status).toBe(201);
});

/** Node's parser would drop the beginning of what follows in the same packet, and take the rest for the next request. */
test.for([
  "h2c",
  "websocket",
])("a request to upgrade to %s is answered as the last one on its connection", async (protocol) => {
  const upgrade = `${get}${authorised}Connection: Upgrade\r\nUpgrade: ${protocol}\r\n\r\n`;
  const [answer] = await exchange(service.httpUrl, upgrade, { answers: 1 });
  expectApiError(answer, 404, "verification_not_found");
  expect(answer?.headers.get("connection")).toBe("close");
  const [behind, later] = [newIdempotencyKey(), newIdempotencyKey()];
  const creation = (key: string) =>
    `${create}${authorised}Content-Type: application/json\r\nIdempotency-Key: ${key}\r\nContent-Length: 2\r\n\r\n{}`;
  const answers = await exchange(service.httpUrl, [upgrade + creation(behind), creation(later)]);
  expect(answers.map(({ status }) => status)).toEqual([404]);
  for (const key of [behind, later]) {
    expect((await merchant(service.httpUrl, testKey).create({}, key)).status).toBe(201);
  }
});

test.for([
  { name: "asks to upgrade", path: "/%zz", fields: "Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n" },
  {
    name: "has an unknown transfer coding",
    path: "/%zz",
    fields: "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
  },
  {
    name: "has an unknown transfer coding and an invalid Host",
    path: "/",
    host: "a b",
    fields: "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
  },
])("nothing behind a request that is refused before its route and $name is carried out", async ({
  path,
  host = "localhost",
  fields,
}) => {
  const refused = `POST ${path} HTTP/1.1\r\nHost: ${host}\r\n${fields}`;
  const [behind, later] = [newIdempotencyKey(), newIdempotencyKey()];
  const creation = (key: string) =>
    `${create}${authorised}Content-Type: application/json\r\nIdempotency-Key: ${key}\r\nContent-Length: 2\r\n\r\n{}`;
  const pieces = [
    refused + creation(behind),
    `GET /%zz HTTP/1.1\r\nHost: localhost\r\n\r\n${creation(later)}`,
  ];
  const answers = await exchange(service.httpUrl, pieces, { halfClose: true });
  expect(answers).toHaveLength(1);
  expectApiError(answers[0], 400, "malformed_request");
  expect(answers[0]?.headers.get("connection")).toBe("close");
  for (const key of [behind, later]) {
    expect((await merchant(service.httpUrl, testKey).create({}, key)).status).toBe(201);
  }
});

test("an Upgrade that no Connection names leaves the connection open", async () => {
  const request = `${get}${authorised}Upgrade: h2c\r\n\r\n`;
  expect(await exchange(service.httpUrl, [request, request], { answers: 2 })).toHaveLength(2);
});

describe("valid HTTP outside the contract gets one of the contract's errors:", () => {
  const rows: Row[] = [
    {
      name: "an unknown method",
      request: `BREW /v1/verifications HTTP/1.1\r\n${authorised}\r\n`,
      status: 404,
      code: "route_not_found",
    },
    {
      name: "a method in lower case",
      request: `get /v1/verifications HTTP/1.1\r\n${authorised}\r\n`,
      status: 404,
      code: "route_not_found",
    },
    {
      name: "CONNECT",
      request: `CONNECT localhost:443 HTTP/1.1\r\n${authorised}\r\n`,
      status: 404,
      code: "route_not_found",
    },
    {
      name: "OPTIONS *",
      request: `OPTIONS * HTTP/1.1\r\n${authorised}${last}\r\n`,
      status: 404,
      code: "route_not_found",
    },
    {
      name: "TRACE",
      request: `TRACE /v1/verifications HTTP/1.1\r\n${authorised}${last}\r\n`,
      status: 404,
      code: "route_not_found",
    },
    {
      name: "QUERY",
      request: `QUERY /v1/verifications HTTP/1.1\r\n${authorised}${last}\r\n`,
      status: 404,
      code: "route_not_found",
    },
    {
      name: "PUT with an invalid content type",
      request: `PUT /v1/verifications HTTP/1.1\r\n${authorised}${last}Content-Type: ;;;\r\nContent-Length: 2\r\n\r\n{}`,
      status: 404,
      code: "route_not_found",
    },
    {
      name: "an upgrade to WebSocket",
      request: `${get}${authorised}Connection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n`,
      status: 404,
      code: "verification_not_found",
    },
    {
      name: "an upgrade to HTTP/2",
      request: `${get}${authorised}Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n`,
      status: 404,
      code: "verification_not_found",
    },
    {
      name: "an unknown Expect",
      request: `${get}${authorised}${last}Expect: a miracle\r\n\r\n`,
      status: 404,
      code: "verification_not_found",
    },
    {
      name: "HTTP/1.0",
      request: `GET /v1/verifications/vrf_none HTTP/1.0\r\n${authorised}\r\n`,
      status: 404,
      code: "verification_not_found",
    },
    {
      name: "HTTP/1.0 without a Host",
      request: "GET /v1/verifications/vrf_none HTTP/1.0\r\n\r\n",
      status: 401,
      code: "missing_api_key",
    },
    {
      name: "an absolute URL",
      request: `GET http://localhost/v1/verifications/vrf_none HTTP/1.1\r\n${authorised}${last}\r\n`,
      status: 404,
      code: "verification_not_found",
    },
    {
      name: "a GET with a body",
      request: `${get}${authorised}${last}Content-Length: 3\r\n\r\nabc`,
      status: 404,
      code: "verification_not_found",
    },
    {
      name: "invalid UTF-8 in an id",
      request: `GET /v1/verifications/%FF?%zz HTTP/1.1\r\n${authorised}${last}\r\n`,
      status: 404,
      code: "verification_not_found",
    },
    {
      name: "invalid UTF-8 in a path",
      request: `GET /v1/%ed%a0%80 HTTP/1.1\r\n${authorised}${last}\r\n`,
      status: 404,
      code: "route_not_found",
    },
    {
      name: "NUL in an id",
      request: `GET /v1/verifications/%00 HTTP/1.1\r\n${authorised}${last}\r\n`,
      status: 404,
      code: "verification_not_found",
    },
    {
      name: "a slash in an id",
      request: `GET /v1/verifications/a%2Fb HTTP/1.1\r\n${authorised}${last}\r\n`,
      status: 404,
      code: "verification_not_found",
    },
    {
      name: "dots in an id",
      request: `GET /v1/verifications/%2e%2e HTTP/1.1\r\n${authorised}${last}\r\n`,
      status: 404,
      code: "verification_not_found",
    },
    {
      name: "an id of 15,000 characters",
      request: `GET /v1/verifications/${"a".repeat(15_000)} HTTP/1.1\r\n${authorised}${last}\r\n`,
      status: 404,
      code: "verification_not_found",
    },
    {
      name: "a creation without a body",
      request: `${create}${authorised}${last}Idempotency-Key: hostile-1\r\n\r\n`,
      status: 400,
      code: "unsupported_content_type",
    },
    {
      name: "a creation with an empty body",
      request: `${create}${authorised}${last}${json}Content-Length: 0\r\n\r\n`,
      status: 400,
      code: "invalid_json",
    },
    {
      name: "an Idempotency-Key sent twice",
      request: `${create}${authorised}${last}${json}Idempotency-Key: hostile-1\r\nContent-Length: 2\r\n\r\n{}`,
      status: 400,
      code: "idempotency_key_invalid",
    },
    {
      name: "a cancel with an invalid content type",
      request: `${cancel}${authorised}${last}Content-Type: ;;;\r\nContent-Length: 3\r\n\r\n{"a`,
      status: 404,
      code: "verification_not_found",
    },
    {
      name: "a cancel with an endless chunk",
      request: `${cancel}${authorised}Transfer-Encoding: chunked\r\n\r\nfffffff\r\n${"a".repeat(70_000)}`,
      status: 400,
      code: "body_too_large",
    },
    {
      name: "a body that is announced as too large",
      request: `${create}${authorised}${json}Content-Length: 99999999\r\nExpect: 100-continue\r\n\r\n`,
      status: 400,
      code: "body_too_large",
    },
  ];
  test.for(rows)("$name", async ({ request, status, code }) => {
    const [answer, ...more] = await exchange(service.httpUrl, request, { answers: 1 });
    expect(more).toEqual([]);
    expectApiError(answer, status, code);
  });

  test.for([
    "",
    "shop.example",
    "Shop_1.example:8080",
    "127.0.0.1:80",
    "[::1]:3000",
    "[::1]",
    "a%20b",
    "a:",
  ])("the Host %j is accepted", async (host) => {
    const request = `${get}Host: ${host}\r\nAuthorization: Bearer ${testKey}\r\n${last}\r\n`;
    const [answer] = await exchange(service.httpUrl, request);
    expectApiError(answer, 404, "verification_not_found");
  });

  test("HEAD gets 404 without a body", async () => {
    const request = `HEAD /v1/verifications/vrf_none HTTP/1.1\r\n${authorised}${last}\r\n`;
    const [answer] = await exchange(service.httpUrl, request, { bodyless: true });
    expect(answer?.status).toBe(404);
    expect(answer?.headers.get("x-request-id")).toMatch(/^req_/);
  });
});

describe("answers keep the order of their requests", () => {
  const whole = `${get}${authorised}\r\n`;

  test("two requests in one write get two answers", async () => {
    const answers = await exchange(service.httpUrl, whole + whole, { answers: 2 });
    expect(answers.map(({ status }) => status)).toEqual([404, 404]);
    expect(new Set(answers.map((answer) => errorOf(answer).request_id)).size).toBe(2);
  });

  test("the refusal of invalid bytes after a request waits for that request's answer", async () => {
    const answers = await exchange(service.httpUrl, `${whole}\0\0\0`);
    expectApiError(answers[0], 404, "verification_not_found");
    expectApiError(answers[1], 400, "malformed_request");
    expect(answers).toHaveLength(2);
  });

  test("the refusal of an unknown method after a request waits for that request's answer", async () => {
    const answers = await exchange(service.httpUrl, `${whole}BREW / HTTP/1.1\r\nHost: localhost\r\n\r\n`);
    expectApiError(answers[0], 404, "verification_not_found");
    expectApiError(answers[1], 404, "route_not_found");
    expect(answers).toHaveLength(2);
  });

  test("large bodies behind a waiting request are read when it has been answered", async () => {
    const state = JSON.stringify({ state: "a".repeat(60_000) });
    const large = `${create}${authorised}${json}Content-Length: ${state.length}\r\n\r\n${state}`;
    const tooLarge = `${create}${authorised}${json}Content-Length: 1000000\r\n\r\n${"a".repeat(1_000_000)}`;
    const { body } = await merchant(service.httpUrl, testKey).create();
    const first = `POST /v1/verifications/${body.id}/cancel HTTP/1.1\r\n${authorised}\r\n`;
    const lock = await service.db.connect();
    onTestFinished(() => lock.release(true));
    await lock.query("BEGIN; LOCK TABLE verification IN EXCLUSIVE MODE");
    const answered = exchange(service.httpUrl, first + large + large + tooLarge + whole, { answers: 5 });
    await untilWaiting(service.db, 1);
    await lock.query("ROLLBACK");
    expect((await answered).map(({ status }) => status)).toEqual([200, 422, 422, 400, 404]);
  });

  test("requests that wait behind another are not started if their client has left", async () => {
    const shop = merchant(service.httpUrl, testKey);
    const [before, behind] = [(await shop.create()).body.id, (await shop.create()).body.id];
    const cancelOf = (id: string) => `POST /v1/verifications/${id}/cancel HTTP/1.1\r\n${authorised}\r\n`;
    const lock = await service.db.connect();
    onTestFinished(() => lock.release(true));
    await lock.query("BEGIN; LOCK TABLE verification IN EXCLUSIVE MODE");
    const { hostname, port } = new URL(service.httpUrl);
    const socket = net.connect(Number(port), hostname);
    socket.write(cancelOf(before) + cancelOf(behind) + whole);
    await untilWaiting(service.db, 1);
    socket.resetAndDestroy();
    // Answered after the service has noticed the end of the connection.
    await shop.call("GET", `/v1/verifications/${before}`);
    await lock.query("ROLLBACK");
    await expect
      .poll(async () => (await shop.call("GET", `/v1/verifications/${before}`)).body.status)
      .toBe("cancelled");
    expect((await shop.call("GET", `/v1/verifications/${behind}`)).body.status).toBe("pending");
  });

  test("an unknown method right after a body is recognized as one", async () => {
    const withBody = `${cancel}${authorised}Content-Length: 2\r\n\r\n{}`;
    const answers = await exchange(service.httpUrl, `${withBody}BREW /v1/x HTTP/1.1\r\n${authorised}\r\n`);
    expectApiError(answers[0], 404, "verification_not_found");
    expectApiError(answers[1], 404, "route_not_found");
    expect(answers).toHaveLength(2);
  });

  test.for([
    "BREW /v1",
    "BREW /v1/x ",
    "BREW /v1/x HT",
    "BREW /v1/x HTTP/1.1\r",
    "GETX /v1/x HTTP/1.",
  ])("an unknown method is recognized from an incomplete request line: %j", async (piece) => {
    const answers = await exchange(service.httpUrl, piece);
    expect(answers).toHaveLength(1);
    expectApiError(answers[0], 404, "route_not_found");
  });

  test("CONNECT after a request is answered after it", async () => {
    const answers = await exchange(
      service.httpUrl,
      `${whole}CONNECT a:1 HTTP/1.1\r\nHost: localhost\r\n\r\n`,
    );
    expectApiError(answers[0], 404, "verification_not_found");
    expectApiError(answers[1], 404, "route_not_found");
    expect(answers).toHaveLength(2);
  });

  test("a malformed body is refused once, after the answer to the request before it", async () => {
    const broken = `${create}${authorised}${json}Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\nZZ\r\n`;
    const answers = await exchange(service.httpUrl, [whole + broken, "more", "and more"]);
    expectApiError(answers[0], 404, "verification_not_found");
    expectApiError(answers[1], 400, "malformed_request");
    expect(answers).toHaveLength(2);
  });

  test.for([
    { name: "one read", reads: 1 },
    { name: "more reads than may wait", reads: 500 },
  ])("a read pipelined behind a cancel sees the cancelled verification: $name", async ({ reads }) => {
    const shop = merchant(service.httpUrl, testKey);
    const { body } = await shop.create();
    const path = `/v1/verifications/${body.id}`;
    const request =
      `POST ${path}/cancel HTTP/1.1\r\n${authorised}\r\n` +
      `GET ${path} HTTP/1.1\r\n${authorised}\r\n`.repeat(reads);
    // The lock lets reads through, but not the cancel.
    const lock = await service.db.connect();
    onTestFinished(() => lock.release(true));
    await lock.query("BEGIN; LOCK TABLE verification IN EXCLUSIVE MODE");
    const answered = exchange(service.httpUrl, [request, whole], { answers: reads + 2, halfClose: true });
    await untilWaiting(service.db, 1);
    expect((await shop.call("GET", path)).body.status).toBe("pending");
    await lock.query("ROLLBACK");
    const answers = await answered;
    expectApiError(answers.pop(), 404, "verification_not_found");
    const seen = answers.map((answer) => (JSON.parse(answer.body) as AnswerBody).status);
    expect(seen).toEqual(Array.from({ length: reads + 1 }, () => "cancelled"));
  });

  test("a cancel behind two reads begins when both have been answered, not only the first", async () => {
    const shop = merchant(service.httpUrl, testKey);
    const path = `/v1/verifications/${(await shop.create()).body.id}`;
    const lock = await service.db.connect();
    onTestFinished(() => lock.release(true));
    await lock.query("BEGIN; LOCK TABLE verification IN ACCESS EXCLUSIVE MODE");
    let isBegun = false;
    const note = (message: unknown) => {
      if ((message as { request: FastifyRequest }).request.url === `${path}/cancel`) isBegun = true;
    };
    subscribe("tracing:fastify.request.handler:start", note);
    onTestFinished(() => void unsubscribe("tracing:fastify.request.handler:start", note));
    const { hostname, port } = new URL(service.httpUrl);
    const connection = connectionOf("/v1/none");
    const socket = net.connect(Number(port), hostname);
    onTestFinished(() => void socket.destroy());
    const statuses = statusesOf(socket);
    const reads = `GET /v1/none HTTP/1.1\r\nHost: a\r\n\r\nGET ${path} HTTP/1.1\r\n${authorised}\r\n`;
    const answered = once(socket, "data");
    socket.write(reads);
    const accepted = await connection;
    await answered;
    await untilWaiting(service.db, 1);
    const sent = `POST ${path}/cancel HTTP/1.1\r\n${authorised}${last}\r\n`;
    socket.write(sent);
    await vi.waitUntil(() => accepted.bytesRead === (reads + sent).length, { timeout: 45_000 });
    expect((await fetch(`${service.httpUrl}/v1/none`)).status).toBe(404);
    expect(isBegun).toBe(false);
    await lock.query("ROLLBACK");
    expect(await statuses).toEqual(["HTTP/1.1 404", "HTTP/1.1 200", "HTTP/1.1 200"]);
    expect(isBegun).toBe(true);
  });

  test.for([
    { name: "reads", method: "GET", action: "", rest: "\r\n" },
    { name: "requests with bodies", method: "POST", action: "/cancel", rest: "Content-Length: 2\r\n\r\n{}" },
  ])("of many pipelined $name the service reads a limited number ahead, and the rest after its answer", async ({
    method,
    action,
    rest,
  }) => {
    const { testKey: key } = await service.createProject({ rateLimitPerMinute: 10_000 });
    const shop = merchant(service.httpUrl, key);
    const { body } = await shop.create();
    const path = `/v1/verifications/${body.id}`;
    const head = `HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${key}\r\n`;
    const padding = `X-Padding: ${"a".repeat(8_000)}\r\n`;
    const count = 500;
    const following = `${method} ${path}${action} ${head}${padding}${rest}`;
    const request = `POST ${path}/cancel ${head}\r\n${following.repeat(count)}`;
    const lock = await service.db.connect();
    onTestFinished(() => lock.release(true));
    await lock.query("BEGIN; LOCK TABLE verification IN EXCLUSIVE MODE");
    const connection = connectionOf(`${path}/cancel`);
    const answered = exchange(service.httpUrl, request, { answers: count + 1 });
    const socket = await connection;
    await vi.waitUntil(() => socket.isPaused() || socket.bytesRead === request.length, { timeout: 45_000 });
    expect((await shop.call("GET", path)).body.status).toBe("pending");
    const readBefore = socket.bytesRead;
    await lock.query("ROLLBACK");
    // Some seventy requests, and what one more read from the socket brings.
    expect(readBefore).toBeLessThan(1_000_000);
    const seen = (await answered).map((answer) => (JSON.parse(answer.body) as AnswerBody).status);
    expect(seen).toEqual(Array.from({ length: count + 1 }, () => "cancelled"));
    expect(socket.bytesRead).toBe(request.length);
  });

  test("of many pipelined reads 64 are worked on at once, and all are answered", async () => {
    const { testKey: key } = await service.createProject({ rateLimitPerMinute: 100_000 });
    const shop = merchant(service.httpUrl, key);
    const path = `/v1/verifications/${(await shop.create()).body.id}`;
    const reads = 1_000;
    const lock = await service.db.connect();
    onTestFinished(() => lock.release(true));
    await lock.query("BEGIN; LOCK TABLE verification IN ACCESS EXCLUSIVE MODE");
    let begun = 0;
    let ended = 0;
    let most = 0;
    const begin = (message: unknown) => {
      if ((message as { request: FastifyRequest }).request.url !== path) return;
      begun++;
      most = Math.max(most, begun - ended);
    };
    const end = (message: unknown) => {
      if ((message as { request: IncomingMessage }).request.url === path) ended++;
    };
    subscribe("tracing:fastify.request.handler:start", begin);
    subscribe("http.server.response.finish", end);
    onTestFinished(() => {
      unsubscribe("tracing:fastify.request.handler:start", begin);
      unsubscribe("http.server.response.finish", end);
    });
    const read = `GET ${path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${key}\r\n\r\n`;
    const answered = exchange(service.httpUrl, read.repeat(reads), { answers: reads });
    // While the database hangs, so that each of them is refused in time.
    await vi.waitUntil(() => begun >= 64, { timeout: 45_000 });
    // Another connection's request is answered behind all that have begun.
    expect((await fetch(`${service.httpUrl}/v1/none`)).status).toBe(404);
    expect(begun).toBe(64);
    await lock.query("ROLLBACK");
    expect(await answered).toHaveLength(reads);
    expect([begun, most]).toEqual([reads, 64]);
  });

  test("of pipelined reads eight begin in one round of the event loop", async () => {
    const path = "/openapi.json?rounds";
    let inRound = 0;
    let most = 0;
    const count = (message: unknown) => {
      if ((message as { request: FastifyRequest }).request.url !== path) return;
      inRound++;
      most = Math.max(most, inRound);
      setImmediate(() => {
        inRound = 0;
      });
    };
    subscribe("tracing:fastify.request.handler:start", count);
    onTestFinished(() => void unsubscribe("tracing:fastify.request.handler:start", count));
    const reads = 500;
    const answers = await exchange(service.httpUrl, `GET ${path} HTTP/1.1\r\nHost: a\r\n\r\n`.repeat(reads), {
      answers: reads,
    });
    expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([200]));
    expect(most).toBe(8);
  });

  test("pipelined creations with the same key are one creation and its replays", async () => {
    const key = "Content-Type: application/json\r\nIdempotency-Key: pipelined-1\r\n";
    const sent = `${create}${authorised}${key}Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}`;
    const answers = await exchange(service.httpUrl, sent.repeat(3) + whole, { answers: 4 });
    expect(answers.map(({ status }) => status)).toEqual([201, 200, 200, 404]);
  });

  test.for([
    { name: "a malformed body", sent: "Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\nZZ\r\n" },
    { name: "a body that ends early", sent: "Content-Length: 10\r\n\r\n{" },
  ])("$name behind a creation is refused once, after the creation's answer", async ({ sent }) => {
    const unique = (id: string) =>
      `Content-Type: application/json\r\nIdempotency-Key: ${id}-${sent.length}\r\n`;
    const first = `${create}${authorised}${unique("before")}Content-Length: 2\r\n\r\n{}`;
    const broken = `${create}${authorised}${unique("broken")}${sent}`;
    const answers = await exchange(service.httpUrl, first + broken, { halfClose: true });
    expect(answers[0]).toMatchObject({ status: 201 });
    expectApiError(answers[1], 400, "malformed_request");
    expect(answers).toHaveLength(2);
  });

  test.for([
    { name: "a read", before: get },
    { name: "a cancel", before: cancel },
    { name: "a read and a cancel", before: `${get}${authorised}\r\n${cancel}` },
  ])("what is no request behind $name is refused after it, also if the client has half-closed", async ({
    before,
  }) => {
    for (const halfClose of [false, true]) {
      const sent = `${before}${authorised}\r\nhow do you do\r\n\r\n`;
      const answers = await exchange(service.httpUrl, sent, { halfClose });
      expectApiError(answers.at(-1), 400, "malformed_request");
      for (const answer of answers.slice(0, -1)) expectApiError(answer, 404, "verification_not_found");
      expect(answers).toHaveLength(before.split("HTTP").length);
    }
  });

  test("what is no request behind one that asks to close gets no answer", async () => {
    for (const halfClose of [false, true]) {
      const sent = `${get}${authorised}${last}\r\nhow do you do\r\n\r\n`;
      const answers = await exchange(service.httpUrl, sent, { halfClose });
      expectApiError(answers[0], 404, "verification_not_found");
      expect(answers).toHaveLength(1);
    }
  });

  test("CONNECT after waiting requests is answered after them", async () => {
    const waiting = `${cancel}${authorised}\r\n`.repeat(2);
    const connect = "CONNECT a:1 HTTP/1.1\r\nHost: localhost\r\n\r\n";
    const answers = await exchange(service.httpUrl, waiting + connect);
    expect(answers.map((answer) => errorOf(answer).code)).toEqual([
      "verification_not_found",
      "verification_not_found",
      "route_not_found",
    ]);
  });

  test("a request refused before its body was read leaves the connection usable", async () => {
    const refused = `${create}Host: localhost\r\nContent-Length: 70000\r\n\r\n${"a".repeat(70_000)}`;
    const answers = await exchange(service.httpUrl, refused + whole, { answers: 2 });
    expectApiError(answers[0], 401, "missing_api_key");
    expectApiError(answers[1], 404, "verification_not_found");
  });

  test("a body over the limit leaves the connection usable", async () => {
    const tooLarge = `${create}${authorised}${json}Content-Length: 1000000\r\n\r\n${"a".repeat(1_000_000)}`;
    const answers = await exchange(service.httpUrl, tooLarge + whole, { answers: 2 });
    expectApiError(answers[0], 400, "body_too_large");
    expectApiError(answers[1], 404, "verification_not_found");
  });

  test("a malformed body of a request that was already refused gets no second answer", async () => {
    const refused = `${create}Host: localhost\r\nTransfer-Encoding: chunked\r\n\r\n`;
    const answers = await exchange(service.httpUrl, refused, { afterwards: "ZZ\r\n" });
    expect(answers).toHaveLength(1);
    expectApiError(answers[0], 401, "missing_api_key");
  });

  test("a body over the limit is answered even with Connection: close", async () => {
    const tooLarge = `${create}${authorised}${last}${json}Content-Length: 20000000\r\n\r\n`;
    const answers = await exchange(service.httpUrl, [tooLarge, Buffer.alloc(20_000_000, "a")]);
    expectApiError(answers[0], 400, "body_too_large");
  });
});

describe("a client that stops sending", () => {
  test("gets its answer if its request was complete", async () => {
    const answers = await exchange(service.httpUrl, `${get}${authorised}\r\n`, { halfClose: true });
    expectApiError(answers[0], 404, "verification_not_found");
  });

  test.for([
    { name: "in the middle of a header", request: "GET / HTT" },
    { name: "in the middle of a body", request: `${create}${authorised}${json}Content-Length: 10\r\n\r\n{` },
  ])("$name gets 400", async ({ request }) => {
    const answers = await exchange(service.httpUrl, request, { halfClose: true });
    expect(answers).toHaveLength(1);
    expectApiError(answers[0], 400, "malformed_request");
  });

  test.concurrent.for([
    { name: "in the middle of a header", request: "GET / HTTP/1.1\r\nHost: local", counts: false },
    {
      name: "in the middle of a body",
      request: `${create}${authorised}${json}Content-Length: 10\r\n\r\n{`,
      counts: true,
    },
  ])("$name and keeps its connection open gets 400", async ({ request, counts }, { expect: expectHere }) => {
    const answers = await exchange(service.httpUrl, request);
    expectHere(answers).toHaveLength(1);
    expectApiError(answers[0], 400, "malformed_request");
    expectHere(answers[0]?.headers.has("x-usage-calls")).toBe(counts);
  });

  test.concurrent.for([
    { name: "valid", rest: '"state":"s"}' },
    { name: "invalid", rest: '"state":"s"]' },
  ])("and sends the rest too late, $name, is charged once, and nothing is created", async ({ name, rest }, {
    expect: expectHere,
    onTestFinished,
  }) => {
    const { projectId, testKey: key } = await service.createProject();
    const shop = merchant(service.httpUrl, key);
    await shop.create();
    const uuid = decodeId("prj_", projectId);
    const unlock = await lockUsage(
      `SELECT FROM usage WHERE project_id = '${uuid}' FOR UPDATE`,
      onTestFinished,
    );
    const { hostname, port } = new URL(service.httpUrl);
    const path = `/v1/verifications?late=${name}`;
    const connection = connectionOf(path);
    const socket = net.connect(Number(port), hostname);
    const answered = once(socket, "data") as Promise<[Buffer]>;
    const closed = once(socket, "close");
    const head = `POST ${path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${key}\r\n${json}`;
    socket.write(`${head}Content-Length: ${rest.length + 1}\r\n\r\n{`);
    const accepted = await connection;
    await timeoutOf(accepted);
    const readBefore = accepted.bytesRead;
    socket.write(rest);
    await vi.waitUntil(() => accepted.bytesRead > readBefore, { timeout: 45_000 });
    await unlock();
    const [answer] = await answered;
    expectHere(answer.toString()).toMatch(/^HTTP\/1\.1 400 .*\r\nx-usage-calls: 2\r\n.*"malformed_request"/s);
    await closed;
    expectHere(usageOf(await shop.create())).toBe("3/unlimited");
    const { rowCount } = await service.db.query("SELECT FROM verification WHERE project_id = $1", [uuid]);
    expectHere(rowCount).toBe(2);
  });

  test.concurrent.for([
    { name: "in the middle of a head", rest: `GET /v1/nothing HTTP/1.1\r\n${authorised}\r\n`, sent: 20 },
    {
      name: "in the middle of a body",
      rest: `${create}${authorised}${json}Content-Length: 2\r\n\r\n{}`,
      sent: -1,
    },
  ])("$name, the rest of which this side does not read, gets no answer", async ({ name, rest, sent }, {
    expect: expectHere,
    onTestFinished,
  }) => {
    const path = `/v1/unread?${name.replaceAll(" ", "-")}`;
    const connection = connectionOf(path);
    const { hostname, port } = new URL(service.httpUrl);
    const socket = net.connect(Number(port), hostname);
    onTestFinished(() => void socket.destroy());
    let received = "";
    const closed = new Promise<void>(
      (resolve) => void socket.on("error", () => {}).on("close", () => resolve()),
    );
    socket.on("data", (piece) => {
      received += piece;
    });
    socket.write(`GET ${path} HTTP/1.1\r\n${authorised}\r\n${rest.slice(0, sent)}`);
    const accepted = await connection;
    await vi.waitUntil(() => received !== "", { timeout: 45_000 });
    // As if its turn came late under overload.
    pauseReading(accepted);
    socket.write(rest.slice(sent));
    await closed;
    expectHere(received.match(/HTTP\/1\.1 \d+/g)).toEqual(["HTTP/1.1 404"]);
  });

  test.concurrent("in the middle of a head, which this side does not read, still gets the answers before it", async ({
    expect: expectHere,
    onTestFinished,
  }) => {
    const path = "/openapi.json?head";
    const connection = connectionOf(path);
    const { hostname, port } = new URL(service.httpUrl);
    const socket = net.connect(Number(port), hostname).pause();
    onTestFinished(() => void socket.destroy());
    // More than the kernel takes.
    const count = 100;
    socket.write(`${`GET ${path} HTTP/1.1\r\nHost: localhost\r\n\r\n`.repeat(count)}GET /v1/n`);
    const accepted = await connection;
    await vi.waitUntil(() => accepted.writableNeedDrain, { timeout: 45_000 });
    // As if its turn came late under overload.
    pauseReading(accepted);
    await timeoutOf(accepted);
    expectHere(accepted.writableNeedDrain).toBe(true);
    expectHere(await statusesOf(socket)).toEqual(new Array(count).fill("HTTP/1.1 200"));
  });

  test.concurrent("in the middle of a head, which has arrived behind more requests than are read ahead, gets no answer", async ({
    expect: expectHere,
    onTestFinished,
  }) => {
    const path = "/openapi.json?ahead";
    const connection = connectionOf(path);
    const { hostname, port } = new URL(service.httpUrl);
    const socket = net.connect(Number(port), hostname).pause();
    onTestFinished(() => void socket.destroy());
    const request = `GET ${path} HTTP/1.1\r\nHost: localhost\r\n\r\n`;
    // More than one read from the socket brings.
    socket.write(request.repeat(5_000));
    await timeoutOf(await connection);
    const statuses = await statusesOf(socket);
    expectHere(new Set(statuses)).toEqual(new Set(["HTTP/1.1 200"]));
  });

  test.concurrent("in the middle of a head, behind many requests that wait, still gets the answers before it", async ({
    expect: expectHere,
    onTestFinished,
  }) => {
    const { testKey: key } = await service.createProject();
    const { body } = await merchant(service.httpUrl, key).create();
    const path = `/v1/verifications/${body.id}/cancel`;
    const connection = connectionOf(path);
    const lock = await service.db.connect();
    onTestFinished(() => lock.release(true));
    await lock.query(`BEGIN; SELECT FROM verification WHERE id = '${decodeId("vrf_", body.id)}' FOR UPDATE`);
    const { hostname, port } = new URL(service.httpUrl);
    const socket = net.connect(Number(port), hostname);
    onTestFinished(() => void socket.destroy());
    const head = `Host: localhost\r\nAuthorization: Bearer ${key}\r\n`;
    const count = 100;
    socket.write(`POST ${path} HTTP/1.1\r\n${head}\r\n`.repeat(count).concat("GET /v1/n"));
    await timeoutOf(await connection);
    await lock.query("ROLLBACK");
    const statuses = await statusesOf(socket);
    expectHere(statuses).toHaveLength(count);
    expectHere(statuses).not.toContain("HTTP/1.1 400");
  });

  test("gets its answers, also one that is ready and waits for the one before", async () => {
    const { projectId, testKey: key } = await service.createProject();
    await merchant(service.httpUrl, key).create();
    const unlock = await lockUsage(
      `SELECT FROM usage WHERE project_id = '${decodeId("prj_", projectId)}' FOR UPDATE`,
      onTestFinished,
    );
    const path = "/openapi.json?ready";
    const connection = connectionOf(path);
    const { hostname, port } = new URL(service.httpUrl);
    const socket = net.connect({ host: hostname, port: Number(port), allowHalfOpen: true });
    onTestFinished(() => void socket.destroy());
    const head = `Host: localhost\r\nAuthorization: Bearer ${key}\r\n`;
    socket.write(`${get}${head}\r\nGET ${path} HTTP/1.1\r\n${head}\r\n`);
    const accepted = await connection;
    // It is answered after the other, which takes as long.
    await (await fetch(`${service.httpUrl}/openapi.json`)).text();
    socket.end();
    await once(accepted, "end");
    await unlock();
    expect(await statusesOf(socket)).toEqual(["HTTP/1.1 404", "HTTP/1.1 200"]);
  });

  test.concurrent("in the middle of a body that its event stream does not need keeps the stream", async ({
    expect: expectHere,
    onTestFinished,
  }) => {
    const shop = merchant(service.httpUrl, testKey);
    const { body } = await shop.create();
    const path = `${new URL(body.verification_url).pathname}/events`;
    const connection = connectionOf(path);
    const { hostname, port } = new URL(service.httpUrl);
    const socket = net.connect(Number(port), hostname);
    onTestFinished(() => void socket.destroy());
    let received = "";
    socket.on("data", (piece) => {
      received += piece;
    });
    socket.write(`GET ${path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\n{`);
    await timeoutOf(await connection);
    await shop.cancel(body.id);
    await vi.waitUntil(() => socket.closed, { timeout: 45_000 });
    expectHere(received).toMatch(/^HTTP\/1\.1 200 .*"status":"pending".*"status":"cancelled"/s);
    expectHere(received.match(/HTTP\/1\.1/g)).toHaveLength(1);
  });

  test.concurrent("before its first byte gets no answer", async ({ expect: expectHere }) => {
    expectHere(await exchange(service.httpUrl, "")).toEqual([]);
  });
});

describe("a client that sends Expect: 100-continue", () => {
  const asked = `${create}${authorised}${json}Expect: 100-continue\r\n`;

  test.for([
    { name: "before a body of the maximum size gets 100", length: 65_536, expectedStatus: 100 },
    { name: "before a larger body is refused", length: 65_537, expectedStatus: 400 },
  ])("$name", async ({ length, expectedStatus }) => {
    expect(await firstStatus(`${asked}Content-Length: ${length}\r\n\r\n`)).toBe(expectedStatus);
  });
});

test("a body that is refused before it was asked for may never come, so the answer closes the connection", async () => {
  const asked = `${create}${authorised}${json}Expect: 100-continue\r\nContent-Length: 65537\r\n\r\n`;
  const [answer] = await exchange(service.httpUrl, asked);
  expectApiError(answer, 400, "body_too_large");
  expect(answer?.headers.get("connection")).toBe("close");
});

/** The status of the first answer, interim or final. */
async function firstStatus(request: string): Promise<number> {
  const { hostname, port } = new URL(service.httpUrl);
  const socket = net.connect(Number(port), hostname);
  socket.write(request);
  const [answer] = (await once(socket, "data")) as [Buffer];
  socket.destroy();
  return Number(/^HTTP\/1\.1 (\d{3}) /.exec(answer.toString("latin1"))?.[1]);
}

describe("a call whose body breaks off counts as usage", () => {
  const head = (key: string) => `Host: localhost\r\nAuthorization: Bearer ${key}\r\n${json}`;

  test.for([
    { name: "at a creation", line: create, body: "Content-Length: 10\r\n\r\n{" },
    { name: "at a cancel", line: cancel, body: "Content-Length: 10\r\n\r\n{" },
    { name: "at an invalid chunk", line: create, body: "Transfer-Encoding: chunked\r\n\r\nZZ\r\n" },
  ])("$name", async ({ line, body }) => {
    const { testKey: key } = await service.createProject();
    const [answer] = await exchange(service.httpUrl, line + head(key) + body, { halfClose: true });
    expectApiError(answer, 400, "malformed_request");
    expect(answer?.headers.get("x-usage-calls")).toBe("1");
    expect(answer?.headers.get("ratelimit-policy")).toContain("q=6000");
    expect(usageOf(await merchant(service.httpUrl, key).create())).toBe("2/unlimited");
  });

  test("once, if it is refused for its headers, too", async () => {
    const { testKey: key } = await service.createProject();
    const keyless = `Host: localhost\r\nAuthorization: Bearer ${key}\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n`;
    const answers = await exchange(service.httpUrl, create + keyless, { halfClose: true });
    expect(answers).toHaveLength(1);
    expect(usageOf(await merchant(service.httpUrl, key).create())).toBe("2/unlimited");
  });

  test.for([
    "POST /nowhere",
    "HEAD /nowhere",
    "GET /nowhere",
    "GET /v1/verifications/vrf_none",
  ])("at %s", async (line) => {
    const { testKey: key } = await service.createProject();
    const broken = `${line} HTTP/1.1\r\n${head(key)}Transfer-Encoding: chunked\r\n\r\nZZ\r\n`;
    const [answer] = await exchange(service.httpUrl, broken, { bodyless: line.startsWith("HEAD") });
    expect([answer?.status, answer?.headers.get("x-usage-calls")]).toEqual([400, "1"]);
    expect(usageOf(await merchant(service.httpUrl, key).create())).toBe("2/unlimited");
  });

  /** The last response of a connection whose request breaks off while the call is charged. */
  async function answerTo(path: string, request: string): Promise<string> {
    const connection = connectionOf(path);
    const unlock = await lockUsage("LOCK TABLE usage", onTestFinished);
    const socket = net.connect(Number(new URL(service.httpUrl).port), "127.0.0.1");
    const closed = once(socket, "close");
    const answered = once(socket, "data") as Promise<[Buffer]>;
    socket.write(request);
    const accepted = await connection;
    await untilWaiting(service.db, 1);
    const readBefore = accepted.bytesRead;
    socket.write("ZZ\r\n");
    await vi.waitUntil(() => accepted.bytesRead > readBefore, { timeout: 45_000 });
    await unlock();
    const [answer] = await answered;
    await closed;
    return answer.toString();
  }

  test("and if a read is in progress, its response is the connection's last", async () => {
    const { testKey: key } = await service.createProject();
    const path = "/v1/verifications/vrf_broken";
    const request = `GET ${path} HTTP/1.1\r\n${head(key)}Transfer-Encoding: chunked\r\n\r\n`;
    expect(await answerTo(path, request)).toMatch(/^HTTP\/1\.1 404 .*\r\nx-usage-calls: 1\r\n/s);
  });

  test.for([
    { name: "headers", limit: null, body: "", status: 400, code: "idempotency_key_required" },
    { name: "headers", limit: 0n, body: "", status: 429, code: "usage_limit_exceeded" },
    {
      name: "size",
      limit: null,
      body: `11170\r\n${"a".repeat(70_000)}\r\n`,
      status: 400,
      code: "body_too_large",
    },
  ])("and if it is being refused for its $name, with $code, that is the connection's last response", async ({
    name,
    limit,
    body,
    status,
    code,
  }) => {
    const { testKey: key } = await service.createProject(limit === null ? {} : { usageLimit: limit });
    const keyless = `Host: localhost\r\nAuthorization: Bearer ${key}\r\n`;
    const path = `/v1/verifications?refused=${code}`;
    const fields = name === "size" ? head(key) : keyless;
    const answer = await answerTo(
      path,
      `POST ${path} HTTP/1.1\r\n${fields}Transfer-Encoding: chunked\r\n\r\n${body}`,
    );
    expect(answer).toMatch(new RegExp(`^HTTP/1\\.1 ${status} .*\r\nconnection: close\r\n.*"${code}"`, "is"));
    expect(answer.includes("x-usage-calls: 1\r\n")).toBe(status === 400);
  });

  test("and is refused if the month is used up", async () => {
    const { testKey: key } = await service.createProject({ usageLimit: 0n });
    const broken = `${create}${head(key)}Content-Length: 10\r\n\r\n{`;
    const [answer] = await exchange(service.httpUrl, broken, { halfClose: true });
    expectApiError(answer, 429, "usage_limit_exceeded");
    expect(answer?.headers.get("retry-after")).toMatch(/^\d+$/);
  });
});

test.for([
  { name: "that ends early", body: "Content-Length: 100\r\n\r\nfrom=" },
  { name: "with an invalid chunk", body: "Transfer-Encoding: chunked\r\n\r\n5\r\nfrom=\r\nZZ\r\n" },
])("a window's form $name is refused once, and counted once", async ({ body }) => {
  const counted = async () => {
    const { sum } = await scrape(service.opsUrl);
    const route = "/v/:token/messages";
    const [all, refused] = [{}, { status: "400" }].map((labels) =>
      sum("phoneproof_http_request_duration_seconds_count", { route, ...labels }),
    );
    return { all, refused };
  };
  const before = await counted();
  const form = "Host: localhost\r\nContent-Type: application/x-www-form-urlencoded\r\n";
  const answers = await exchange(service.httpUrl, `POST /v/none/messages HTTP/1.1\r\n${form}${body}`, {
    halfClose: true,
  });
  expect(answers).toHaveLength(1);
  expectApiError(answers[0], 400, "malformed_request");
  expect(answers[0]?.headers.get("connection")).toBe("close");
  await expect.poll(async () => (await counted()).all).toBe((before.all ?? 0) + 1);
  expect((await counted()).refused).toBe((before.refused ?? 0) + 1);
});

test("a connection that was given up is closed a second later, though its client goes on sending", async () => {
  const { hostname, port } = new URL(service.httpUrl);
  const socket = net.connect({ host: hostname, port: Number(port), allowHalfOpen: true });
  const closed = new Promise((resolve) => void socket.on("error", () => {}).on("close", resolve));
  const begun = performance.now();
  socket.write("GET / HTT\r\n\r\n");
  const ended = once(socket, "end");
  socket.resume();
  await ended;
  const sending = setInterval(() => socket.write("x"), 50);
  onTestFinished(() => clearInterval(sending));
  await closed;
  // Not at what it sends next: that would reset the connection, perhaps before the client has read its answer.
  expect(performance.now() - begun).toBeGreaterThan(990);
});

test("a connection that is reset after CONNECT, before a request ahead of that was answered, is only closed", async () => {
  const { testKey: key } = await service.createProject();
  const path = "/v1/verifications/vrf_reset";
  const connection = connectionOf(path);
  const unlock = await lockUsage("LOCK TABLE usage", onTestFinished);
  const socket = net.connect(Number(new URL(service.httpUrl).port), "127.0.0.1");
  const head = `Host: localhost\r\nAuthorization: Bearer ${key}\r\n`;
  socket.write(`GET ${path} HTTP/1.1\r\n${head}\r\nCONNECT a:1 HTTP/1.1\r\nHost: localhost\r\n\r\n`);
  const accepted = await connection;
  const closed = new Promise((resolve) => void accepted.on("close", resolve));
  await untilWaiting(service.db, 1);
  socket.resetAndDestroy();
  await unlock();
  // An error that nobody listens for would end the process.
  await closed;
});

test("a client that disconnects in the middle of a body is not charged", async () => {
  // A process where no other client disconnects.
  const quiet = await service.startAnother();
  const { testKey: key } = await quiet.createProject();
  const { hostname, port } = new URL(quiet.httpUrl);
  const head = `${create}Host: localhost\r\nAuthorization: Bearer ${key}\r\n${json}`;
  const left = async () =>
    (await scrape(quiet.opsUrl)).sum("phoneproof_http_request_duration_seconds_count", { status: "none" });
  const socket = net.connect(Number(port), hostname);
  // The interim answer shows that its head has been read.
  socket.write(`${head}Expect: 100-continue\r\nContent-Length: 100\r\n\r\n`);
  await once(socket, "data");
  socket.write('{"state":', () => socket.resetAndDestroy());
  await expect.poll(left).toBe(1);
  const next = await merchant(quiet.httpUrl, key).create();
  expect([next.status, usageOf(next)]).toEqual([201, "1/unlimited"]);
});

test("after all these requests the service still creates verifications", async () => {
  expect((await merchant(service.httpUrl, testKey).create()).status).toBe(201);
});
