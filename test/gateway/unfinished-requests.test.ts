/** Requests that break off, and clients that leave. */

import { once } from "node:events";
import net from "node:net";
import { describe, expect, onTestFinished, test, vi } from "vitest";
import { decodeId } from "../../src/core/ids.ts";
import { pauseReading } from "../../src/gateway/paused-sockets.ts";
import { startTestService } from "../harness/service.ts";
import { scrape } from "../ops/scrape.ts";
import { untilWaiting } from "../service/barrier.ts";
import { merchant, usageOf } from "./merchant.ts";
import { exchange, statusesOf } from "./raw-http.ts";
import { authorisedBy, cancel, create, expectApiError, get, json } from "./raw-requests.ts";
import { connectionOf, requestsOf, timeoutOf } from "./service-sockets.ts";

const service = await startTestService();
const { testKey } = await service.createProject();
const authorised = authorisedBy(testKey);

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
    // As if its turn came late under overload, and whatever else would resume reading: the request, whose body is read
    // only now on a slow machine, or the turn that the connection's answer gave it.
    pauseReading(accepted);
    accepted.resume = () => accepted;
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
    const begun = requestsOf(path, onTestFinished);
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
    const statuses = await statusesOf(socket);
    expectHere(statuses).toEqual(new Array(begun()).fill("HTTP/1.1 200"));
    expectHere(statuses?.length).toBeGreaterThan(10);
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
