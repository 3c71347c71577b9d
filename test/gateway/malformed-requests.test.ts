/** Requests that are no valid HTTP, or none that the contract knows. */

import { describe, expect, test } from "vitest";
import { startTestService } from "../harness/service.ts";
import { merchant, newIdempotencyKey } from "./merchant.ts";
import { exchange } from "./raw-http.ts";
import { authorisedBy, cancel, create, expectApiError, get, json, last } from "./raw-requests.ts";

const service = await startTestService();
const { testKey } = await service.createProject();
const authorised = authorisedBy(testKey);

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

test("after all these requests the service still creates verifications", async () => {
  expect((await merchant(service.httpUrl, testKey).create()).status).toBe(201);
});
