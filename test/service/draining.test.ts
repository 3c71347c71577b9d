import { subscribe, unsubscribe } from "node:diagnostics_channel";
import { once } from "node:events";
import { Server } from "node:http";
import net from "node:net";
import { setTimeout as delay } from "node:timers/promises";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { describe, expect, onTestFinished, test, vi } from "vitest";
import { bodyLimitBytes } from "../../src/gateway/http-server.ts";
import { InboundMessageService } from "../../src/gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { VerificationService } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { runningTime } from "../../src/running-time.ts";
import { merchant } from "../gateway/merchant.ts";
import { transportTo } from "../harness/grpc-transport.ts";
import { freePorts } from "../harness/ports.ts";
import { startTestService } from "../harness/service.ts";
import { startProcess } from "../ops/service-process.ts";
import { answerOf } from "../rpc/grpc-answer.ts";
import { startCollector } from "../tracing/collector.ts";
import { untilWaiting } from "./barrier.ts";
import { inboundMessage } from "./sms-source.ts";

// Without a worker, whose jobs would wait for the lock below, too.
const beside = await startTestService({ ROLES: "api" });
const { liveKey } = await beside.createProject();
test("on SIGTERM a process becomes unready, answers further requests with connection: close, and exits with 0", async () => {
  const { child, httpUrl, opsUrl, text, ended } = await startProcess({
    DATABASE_URL: beside.databaseUrl,
    DRAIN_SECONDS: "10",
  });
  const shop = merchant(httpUrl, liveKey);
  expect((await fetch(`${opsUrl}/readyz`)).status).toBe(200);
  expect((await shop.create()).headers.get("connection")).toBe("keep-alive");

  child.kill("SIGTERM");
  const stopping = await vi.waitUntil(
    async () => {
      const answer = await fetch(`${opsUrl}/readyz`);
      return answer.status === 503 ? answer : undefined;
    },
    { timeout: 45_000, interval: 20 },
  );
  expect(await stopping.text()).toContain("stopping");
  const { status, headers } = await shop.create();
  expect([status, headers.get("connection")]).toEqual([201, "close"]);

  expect(await ended()).toBe(0);
  // No error, which only a fault of the service itself causes.
  expect(text()).toContain("phoneproof has stopped");
  expect(text()).not.toMatch(/"level":[56]0/);
});

/** A connection that is read only after `resume`. */
async function connect(httpUrl: string): Promise<net.Socket> {
  const { hostname, port } = new URL(httpUrl);
  const socket = net.connect({ host: hostname, port: Number(port) }).pause();
  onTestFinished(() => void socket.destroy());
  await once(socket, "connect");
  return socket;
}

const heads = (text: string) => text.match(/HTTP\/1\.1 \d{3}|^Connection: .*$/gim);

/** No time passes after which a stop gives up calls, and cuts connections off. */
function stopRunningTime(): void {
  const clock = vi.spyOn(runningTime, "now").mockReturnValue(runningTime.now());
  onTestFinished(() => clock.mockRestore());
}

describe("at a stop", () => {
  const create = (key: string, body: string) =>
    `POST /v1/verifications HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${liveKey}\r\n` +
    `Content-Type: application/json\r\nIdempotency-Key: ${key}\r\nContent-Length: ${body.length}\r\n\r\n${body}`;

  /** What is answered to requests on one connection, of which the first is being worked on when the service is told to stop. */
  async function answersAtStop(requests: string) {
    const other = await beside.startAnother();
    stopRunningTime();
    const lock = await beside.db.connect();
    try {
      await lock.query("BEGIN; LOCK TABLE verification, usage");
      const socket = await connect(other.httpUrl);
      socket.write(requests);
      await untilWaiting(beside.db, 1);
      const closed = other.close();
      await expect.poll(() => stopped(other.httpUrl)).toBe(true);
      await lock.query("ROLLBACK");
      const answers = heads(await readToEnd(socket));
      await closed;
      return answers;
    } finally {
      lock.release(true);
    }
  }

  test("a request that was already being worked on is answered with connection: close", async () => {
    expect(await answersAtStop(create("worked-on-1", "{}"))).toEqual(["HTTP/1.1 201", "Connection: close"]);
  });

  test("so is one that is being refused for its body, after which the connection could be kept", async () => {
    const request = create("too-large-1", `"${"x".repeat(bodyLimitBytes)}"`);
    expect(await answersAtStop(request)).toEqual(["HTTP/1.1 400", "connection: close"]);
  });

  test("of requests that are worked on one after the other on a connection, only the last one's answer closes it", async () => {
    const requests = create("in-a-row-1", "{}") + create("in-a-row-2", "{}") + create("in-a-row-3", "[]");
    expect(await answersAtStop(requests)).toEqual([
      "HTTP/1.1 201",
      "Connection: keep-alive",
      "HTTP/1.1 201",
      "HTTP/1.1 422",
      "Connection: close",
    ]);
  });
});

describe("on each signal that ends a process,", () => {
  const start = () => startProcess({ DATABASE_URL: beside.databaseUrl, ROLES: "api", DRAIN_SECONDS: "0" });

  test("SIGHUP: it stops, and exits with 0", async () => {
    const { child, ended } = await start();
    child.kill("SIGHUP");
    expect(await ended()).toBe(0);
  });

  test("SIGINT: answers that a client takes only later arrive completely, and clients that take none are cut off in time", async () => {
    const { child, httpUrl, ended } = await start();
    const expected = (await (await fetch(`${httpUrl}/openapi.json`)).text()).length;
    // More than the kernel takes.
    const count = 100;
    const requests = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(count);
    const late = await connect(httpUrl);
    late.write(requests);
    const cutOff: { readonly socket: net.Socket; readonly closed: Promise<unknown> }[] = [];
    for (const last of ["", "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n"]) {
      const socket = await connect(httpUrl);
      cutOff.push({ socket, closed: once(socket, "close") });
      socket.on("error", () => {});
      socket.write(requests + last);
    }
    // Answered last, on a connection of its own.
    expect((await merchant(httpUrl, liveKey).read("vrf_none")).status).toBe(404);
    child.kill("SIGINT");
    await expect.poll(() => stopped(httpUrl)).toBe(true);
    const text = await readToEnd(late);
    expect(heads(text)?.filter((line) => line === "HTTP/1.1 200")).toHaveLength(count);
    expect(text.length).toBeGreaterThan(count * expected);
    expect(await ended()).toBe(0);
    for (const { socket, closed } of cutOff) {
      socket.resume();
      await closed;
    }
  });
});

async function readToEnd(socket: net.Socket): Promise<string> {
  const pieces: Buffer[] = [];
  for await (const piece of socket) pieces.push(piece);
  return Buffer.concat(pieces).toString("latin1");
}

/**
 * A connection, read only after `resume`, that the service in this process has accepted by one of the sockets that its HTTP
 * server does not know of.
 */
async function connectToFurther(httpUrl: string): Promise<net.Socket> {
  const { hostname, port } = new URL(httpUrl);
  for (;;) {
    const socket = net.connect({ host: hostname, port: Number(port) }).pause();
    onTestFinished(() => void socket.destroy());
    const accepted = new Promise<net.Socket>((resolve) => {
      const look = (message: unknown) => {
        const { socket: one } = message as { socket: net.Socket };
        if (one.remotePort !== socket.localPort) return;
        unsubscribe("net.server.socket", look);
        resolve(one);
      };
      subscribe("net.server.socket", look);
    });
    // Not in its type.
    const { _server } = (await accepted) as net.Socket & { readonly _server: net.Server };
    if (!(_server instanceof Server)) return socket;
    socket.destroy();
  }
}

test("a stop lasts until the last answer that is being sent has been taken, and each connection is closed after its last one", async () => {
  const other = await beside.startAnother();
  const request = "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n";
  // More than the kernel takes.
  const count = 100;
  const sockets = [await connectToFurther(other.httpUrl), await connectToFurther(other.httpUrl)];
  for (const socket of sockets) socket.write(request.repeat(count));
  // Answered last, on a connection of its own.
  expect((await merchant(other.httpUrl, liveKey).read("vrf_none")).status).toBe(404);
  stopRunningTime();
  let isClosed = false;
  const closed = other.close().then(() => {
    isClosed = true;
  });
  await expect.poll(() => stopped(other.httpUrl)).toBe(true);
  for (const socket of sockets) {
    // Longer than the rest of the stop takes.
    for (let query = 0; query < 50; query++) await beside.db.query("SELECT");
    expect(isClosed).toBe(false);
    const text = await readToEnd(socket);
    expect(text.match(/HTTP\/1\.1 200/g)).toHaveLength(count);
    expect(text.endsWith("}")).toBe(true);
  }
  await closed;
});

/** Whether the process has stopped listening. */
async function stopped(httpUrl: string): Promise<boolean> {
  return fetch(`${httpUrl}/nothing`).then(
    () => false,
    () => true,
  );
}

test("calls whose database does not answer when their process stops are refused as unavailable, over REST and gRPC, and so are their spans", async () => {
  const collector = await startCollector();
  const { child, httpUrl, text, ended } = await startProcess({
    DATABASE_URL: beside.databaseUrl,
    ROLES: "api",
    LOG_LEVEL: "info",
    OTEL_EXPORTER_OTLP_ENDPOINT: collector.endpoint,
  });
  const shop = merchant(httpUrl, liveKey);
  const { id: verificationId } = (await shop.create()).body;
  // A process may answer before what it has written arrives here.
  const running = await vi.waitUntil(() => /^.*"grpc":.*\n/m.exec(text())?.[0], { timeout: 45_000 });
  const { grpc } = JSON.parse(running);
  const verifications = createClient(VerificationService, transportTo(grpc, `Bearer ${liveKey}`));
  const lock = await beside.db.connect();
  try {
    await lock.query("BEGIN; SELECT FROM usage FOR UPDATE");
    const creation = shop.create();
    const read = answerOf((options) => verifications.getVerification({ verificationId }, options));
    await untilWaiting(beside.db, 2);
    child.kill("SIGTERM");
    const { status, headers, body } = await creation;
    expect([status, body.error?.code]).toEqual([503, "service_unavailable"]);
    expect([headers.get("retry-after"), headers.get("connection")]).toEqual(["1", "close"]);
    const refused = await read;
    expect(refused).toMatchObject({
      code: "service_unavailable",
      status: Code.Unavailable,
      retryAfterSeconds: 1,
    });
    expect(await ended()).toBe(0);
    const spanOf = (requestId: string | null) =>
      collector.spanWhere((span) => span.attributes["phoneproof.request_id"] === requestId);
    expect(await spanOf(headers.get("x-request-id"))).toMatchObject({
      failed: true,
      attributes: { "http.response.status_code": 503, "error.type": "service_unavailable" },
    });
    expect(await spanOf(refused.requestId)).toMatchObject({
      failed: true,
      attributes: { "rpc.response.status_code": "UNAVAILABLE", "error.type": "UNAVAILABLE" },
    });
  } finally {
    lock.release(true);
  }
});

test("a stop answers a gRPC call that was already being worked on", async () => {
  const other = await beside.startAnother();
  const { id: verificationId } = (await merchant(other.httpUrl, liveKey).create()).body;
  stopRunningTime();
  const lock = await beside.db.connect();
  try {
    await lock.query("BEGIN; SELECT FROM usage FOR UPDATE");
    const read = other.client(VerificationService, liveKey).getVerification({ verificationId });
    await untilWaiting(beside.db, 1);
    const closed = other.close();
    const [host = "", port] = other.grpcAddress.split(":");
    const isRefused = () =>
      new Promise((resolve) => {
        const socket = net.connect({ host, port: Number(port) });
        socket.on("connect", () => resolve(!socket.destroy())).on("error", () => resolve(true));
      });
    await vi.waitUntil(isRefused, { timeout: 45_000 });
    await lock.query("ROLLBACK");
    expect((await read).verification?.id).toBe(verificationId);
    await closed;
  } finally {
    lock.release(true);
  }
});

/** The codes with which so many streams end when their process is stopped, and how long that takes. */
async function stopDuringStreams(count: number) {
  const [port = 0] = await freePorts(1);
  const token = "an-admin-token-that-is-long-enough";
  const { child, ended } = await startProcess({
    DATABASE_URL: beside.databaseUrl,
    ROLES: "api",
    GRPC_PORT: String(port),
    PHONEPROOF_ADMIN_TOKEN: token,
  });
  const baseUrl = `http://127.0.0.1:${port}`;
  const connections = Array.from({ length: 4 }, () => new Http2SessionManager(baseUrl));
  onTestFinished(() => connections.forEach((connection) => void connection.abort()));
  const text = "x".repeat(800);
  let isOver = false;
  async function* requests() {
    while (!isOver) {
      yield { messages: Array.from({ length: 20 }, () => inboundMessage({ to: "0200000002", text })) };
      await delay(2);
    }
  }
  let streamsWithReceipts = 0;
  let isStopping = false;
  /** Until the stop, every third one takes receipts more slowly than they come. */
  async function endOf(sessionManager: Http2SessionManager, index: number): Promise<Code | undefined> {
    const client = createClient(InboundMessageService, createGrpcTransport({ baseUrl, sessionManager }));
    const options = { headers: { authorization: `Bearer ${token}` } };
    let receipts = 0;
    try {
      for await (const _ of client.streamInboundMessages(requests(), options)) {
        if (receipts++ === 0) streamsWithReceipts++;
        if (index % 3 === 0 && !isStopping) await delay(150);
      }
    } catch (error) {
      return ConnectError.from(error).code;
    }
    return undefined;
  }
  const ends = Array.from({ length: count }, (_, index) =>
    endOf(connections[index % connections.length] as Http2SessionManager, index),
  );
  await vi.waitUntil(() => streamsWithReceipts === count, { timeout: 45_000 });
  child.kill("SIGTERM");
  isStopping = true;
  const stoppedAt = performance.now();
  const codes = new Set(await Promise.all(ends));
  const tookMs = performance.now() - stoppedAt;
  expect(await ended()).toBe(0);
  await expect.poll(() => connections.map((connection) => connection.state())).not.toContain("open");
  isOver = true;
  return { codes, tookMs };
}

test("on SIGTERM SMS streams end with UNAVAILABLE, and their connections close, though a client has more to send", async () => {
  let stop = await stopDuringStreams(80);
  // After three seconds connections are cut, which Connect reports as CANCELED. On a slow machine fewer streams have ended by then.
  for (const count of [20, 5]) {
    if (!stop.codes.has(Code.Canceled) || stop.tookMs < 2_900) break;
    stop = await stopDuringStreams(count);
  }
  expect(stop.codes).toEqual(new Set([Code.Unavailable]));
});
