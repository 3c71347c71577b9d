/** Requests behind others on one connection: the answers keep their order. */

import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { once } from "node:events";
import type { IncomingMessage } from "node:http";
import net from "node:net";
import { setImmediate as nextTurn } from "node:timers/promises";
import type { FastifyRequest } from "fastify";
import { expect, onTestFinished, test, vi } from "vitest";
import { startTestService } from "../harness/service.ts";
import { untilWaiting } from "../service/barrier.ts";
import { type AnswerBody, merchant } from "./merchant.ts";
import { exchange, statusesOf } from "./raw-http.ts";
import { authorisedBy, cancel, create, errorOf, expectApiError, get, json, last } from "./raw-requests.ts";
import { connectionOf, requestsOf } from "./service-sockets.ts";

const service = await startTestService();
const { testKey } = await service.createProject();
const authorised = authorisedBy(testKey);
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

test("of requests that many clients pipeline behind one that waits, some thousands are parsed, and all are answered in the end", async () => {
  const [clients, count] = [24, 1_000];
  const { testKey: key } = await service.createProject();
  const { body } = await merchant(service.httpUrl, key).create();
  const path = `/many${body.id}`;
  const parsed = requestsOf(path, onTestFinished);
  const lock = await service.db.connect();
  onTestFinished(() => lock.release(true));
  await lock.query("BEGIN; LOCK TABLE verification IN EXCLUSIVE MODE");
  const { hostname, port } = new URL(service.httpUrl);
  const head = `POST /v1/verifications/${body.id}/cancel HTTP/1.1\r\n${authorisedBy(key)}\r\n`;
  const answered = Promise.all(
    Array.from({ length: clients }, async () => {
      const socket = net.connect(Number(port), hostname);
      onTestFinished(() => void socket.destroy());
      socket.write(head.concat(`GET ${path} HTTP/1.1\r\nHost: a\r\n\r\n`.repeat(count)));
      socket.write("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
      return statusesOf(socket);
    }),
  );
  await untilWaiting(service.db, 1);
  await vi.waitUntil(() => parsed() > 10_000, { timeout: 45_000 });
  // In each turn, dozens of those that may be parsed are.
  for (let turn = 0; turn < 1_500; turn++) await nextTurn();
  expect(parsed()).toBeLessThan(0.6 * clients * count);
  await lock.query("ROLLBACK");
  for (const statuses of await answered) expect(statuses).toHaveLength(count + 2);
});

test("an unknown method right after a body is recognized as one", async () => {
  const withBody = `${cancel}${authorised}Content-Length: 2\r\n\r\n{}`;
  const answers = await exchange(service.httpUrl, `${withBody}BREW /v1/x HTTP/1.1\r\n${authorised}\r\n`);
  expectApiError(answers[0], 404, "verification_not_found");
  expectApiError(answers[1], 404, "route_not_found");
  expect(answers).toHaveLength(2);
});

test("what follows a CONNECT is no request, nor is it taken for one of another connection", async () => {
  const { hostname, port } = new URL(service.httpUrl);
  const connect = () => {
    const client = net.connect({ port: Number(port), host: hostname, allowHalfOpen: true });
    onTestFinished(() => void client.destroy());
    return client;
  };
  const path = "/v1/verifications/vrf_connects";
  const connection = connectionOf(path);
  const client = connect();
  for (const request of [
    `GET ${path} HTTP/1.1\r\n${authorised}\r\n`,
    "CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
  ]) {
    client.write(request);
    await once(client, "data");
  }
  const socket = await connection;
  // Node gives a new connection the parser that was in use last.
  const other = connect();
  other.write("GET /v1/other HTTP/1.1\r\nHost: a\r\n\r\n");
  await once(other, "data");
  const { bytesRead } = socket;
  client.write("GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n");
  while (socket.bytesRead === bytesRead && !socket.destroyed) await nextTurn();
  other.write(`GET /v1/other HTTP/1.1\r\nHost: a\r\n${last}\r\n`);
  expect(await statusesOf(other)).toEqual(["HTTP/1.1 404"]);
});

test("CONNECT after a request is answered after it", async () => {
  const answers = await exchange(service.httpUrl, `${whole}CONNECT a:1 HTTP/1.1\r\nHost: localhost\r\n\r\n`);
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

test("after all these requests the service still creates verifications", async () => {
  expect((await merchant(service.httpUrl, testKey).create()).status).toBe(201);
});
