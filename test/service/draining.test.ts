import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import { afterAll, describe, expect, onTestFinished, test, vi } from "vitest";
import { startServiceProcess } from "../faults/service-process.ts";
import { merchant } from "../gateway/merchant.ts";
import { startTestService } from "../harness/service.ts";
import { startProcess } from "../ops/service-process.ts";
import { untilWaiting } from "./barrier.ts";

const beside = await startTestService();
const { liveKey } = await beside.createProject();
const directory = await mkdtemp(path.join(os.tmpdir(), "phoneproof-draining-"));
const wrong: string[] = [];
const service = await startServiceProcess({
  name: "drained",
  environment: { DATABASE_URL: beside.databaseUrl, DRAIN_SECONDS: "10" },
  logFile: path.join(directory, "service.log"),
  onViolation: (text) => wrong.push(text),
});

afterAll(async () => {
  await service.stop();
  await rm(directory, { recursive: true });
});

test.for(["SIGINT", "SIGHUP"] as const)("%s ends a process as SIGTERM does", async (signal) => {
  const { child, httpUrl, opsUrl, ended } = await startProcess({
    DATABASE_URL: beside.databaseUrl,
    DRAIN_SECONDS: "0",
  });
  expect((await merchant(httpUrl, liveKey).create()).status).toBe(201);
  child.kill(signal);
  expect(await ended()).toBe(0);
  await expect(fetch(`${opsUrl}/readyz`)).rejects.toThrow();
});

test("on SIGTERM a process becomes unready, answers further requests with connection: close, and exits with 0", async () => {
  const life = await service.running();
  const shop = merchant(life.httpUrl, liveKey);
  expect((await fetch(`${life.opsUrl}/readyz`)).status).toBe(200);
  expect((await shop.create()).headers.get("connection")).toBe("keep-alive");

  const restarted = service.restart();
  const stopping = await vi.waitUntil(
    async () => {
      const answer = await fetch(`${life.opsUrl}/readyz`);
      return answer.status === 503 ? answer : undefined;
    },
    { timeout: 45_000, interval: 20 },
  );
  expect(await stopping.text()).toContain("stopping");
  const { status, headers } = await shop.create();
  expect([status, headers.get("connection")]).toEqual([201, "close"]);

  expect(await life.exited).toBe("it ended with exit code 0");
  await restarted;
  expect(wrong).toEqual([]);
});

describe("on SIGTERM", () => {
  const start = () => startProcess({ DATABASE_URL: beside.databaseUrl, DRAIN_SECONDS: "0" });

  /** A connection that is read only after `resume`. */
  async function connect(httpUrl: string): Promise<net.Socket> {
    const { hostname, port } = new URL(httpUrl);
    const socket = net.connect({ host: hostname, port: Number(port) }).pause();
    onTestFinished(() => void socket.destroy());
    await once(socket, "connect");
    return socket;
  }

  async function readToEnd(socket: net.Socket): Promise<string> {
    const pieces: Buffer[] = [];
    for await (const piece of socket) pieces.push(piece);
    return Buffer.concat(pieces).toString("latin1");
  }

  const heads = (text: string) => text.match(/HTTP\/1\.1 \d{3}|^Connection: .*$/gm);
  const create = (key: string, body: string) =>
    `POST /v1/verifications HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${liveKey}\r\n` +
    `Content-Type: application/json\r\nIdempotency-Key: ${key}\r\nContent-Length: ${body.length}\r\n\r\n${body}`;

  /** What is answered to requests on one connection, of which the first is being worked on when the process is told to stop. */
  async function answersAtStop(requests: string) {
    const { child, httpUrl, ended } = await start();
    const lock = await beside.db.connect();
    try {
      await lock.query("BEGIN; LOCK TABLE verification");
      const socket = await connect(httpUrl);
      socket.write(requests);
      await untilWaiting(beside.db, 1);
      child.kill("SIGTERM");
      await expect.poll(() => stopped(httpUrl)).toBe(true);
      await lock.query("ROLLBACK");
      const answers = heads(await readToEnd(socket));
      expect(await ended()).toBe(0);
      return answers;
    } finally {
      lock.release(true);
    }
  }

  test("a request that was already being worked on is answered with connection: close", async () => {
    expect(await answersAtStop(create("worked-on-1", "{}"))).toEqual(["HTTP/1.1 201", "Connection: close"]);
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

  test("answers that a client takes only later arrive completely", async () => {
    const { child, httpUrl, ended } = await start();
    const socket = await connect(httpUrl);
    const expected = (await (await fetch(`${httpUrl}/openapi.json`)).text()).length;
    // More than the kernel takes.
    const count = 100;
    socket.write("GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(count));
    // Answered last, on a connection of its own.
    expect((await merchant(httpUrl, liveKey).read("vrf_none")).status).toBe(404);
    child.kill("SIGTERM");
    await expect.poll(() => stopped(httpUrl)).toBe(true);
    const text = await readToEnd(socket);
    expect(heads(text)?.filter((line) => line === "HTTP/1.1 200")).toHaveLength(count);
    expect(text.length).toBeGreaterThan(count * expected);
    expect(await ended()).toBe(0);
  });

  test.for([
    { name: "a client that takes no answer", last: "" },
    {
      name: "a client that takes no answer, and has sent CONNECT",
      last: "CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n",
    },
  ])("$name is cut off in time", async ({ last }) => {
    const { child, httpUrl, ended } = await start();
    const socket = await connect(httpUrl);
    const cut = once(socket, "close");
    socket.on("error", () => {});
    // More than the kernel takes.
    socket.write("GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(100) + last);
    // Answered last, on a connection of its own.
    expect((await merchant(httpUrl, liveKey).read("vrf_none")).status).toBe(404);
    child.kill("SIGTERM");
    expect(await ended()).toBe(0);
    socket.resume();
    await cut;
  });
});

/** Whether the process has stopped listening. */
async function stopped(httpUrl: string): Promise<boolean> {
  return fetch(`${httpUrl}/nothing`).then(
    () => false,
    () => true,
  );
}
