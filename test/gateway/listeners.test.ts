import { once } from "node:events";
import { createServer, type Server } from "node:http";
import net from "node:net";
import { setImmediate } from "node:timers/promises";
import { expect, onTestFinished, test, vi } from "vitest";
import { createListeners, type Listeners } from "../../src/listeners.ts";
import { blockFor } from "../harness/blocking.ts";
import { freePorts } from "../harness/ports.ts";

interface Opened {
  readonly listeners: Listeners;
  readonly server: Server;
  readonly port: number;
}

async function open(port: number, host = "127.0.0.1"): Promise<Opened> {
  const server = createServer(({ url }, response) => {
    if (url !== "/hang") response.end("it is me");
  });
  const listeners = createListeners();
  onTestFinished(() => {
    listeners.stop();
    server.close();
    server.closeAllConnections();
  });
  const address = await listeners.open(server, { host, port }, async (options) => {
    server.listen(options);
    await once(server, "listening");
  });
  return { listeners, server, port: address.port };
}

/** The connections are closed at the end of the test. */
async function connect(port: number): Promise<net.Socket> {
  const socket = net.connect({ host: "127.0.0.1", port });
  onTestFinished(() => void socket.destroy());
  await once(socket, "connect");
  return socket;
}

test("of connections that wait to be accepted, several are in each round of the event loop", async () => {
  const { server, port } = await open(0);
  const count = 96;
  let accepted = 0;
  server.on("connection", () => accepted++);
  const connected = Array.from({ length: count }, () => connect(port));
  // The kernel completes the handshakes meanwhile.
  blockFor(200);
  let rounds = 0;
  for (; accepted < count; rounds++) await setImmediate();
  await Promise.all(connected);
  expect(rounds).toBeLessThan(count / 2);
});

test("each connection is answered, whichever socket accepts it", async () => {
  const { port } = await open(0);
  const answers = Array.from({ length: 64 }, async () => (await fetch(`http://127.0.0.1:${port}`)).text());
  expect(new Set(await Promise.all(answers))).toEqual(new Set(["it is me"]));
});

test.each([
  "127.0.0.1",
  "::1",
  "0.0.0.0",
  "::",
  "localhost",
])("of many that open a port of %s at once, one gets it", async (host) => {
  const [port = 0] = await freePorts(1);
  const opened = await Promise.allSettled(Array.from({ length: 12 }, () => open(port, host)));
  expect(opened.filter(({ status }) => status === "fulfilled")).toHaveLength(1);
  const reasons = opened.flatMap((result) => (result.status === "rejected" ? [result.reason] : []));
  expect(new Set(reasons.map(({ code }) => code))).toEqual(new Set(["EADDRINUSE"]));
  await expect(open(port, host)).rejects.toMatchObject({ code: "EADDRINUSE" });
});

test("a port that another program uses is refused, also one that it would share", async () => {
  for (const reusePort of [false, true]) {
    const other = net.createServer().listen({ host: "127.0.0.1", port: 0, reusePort });
    onTestFinished(() => void other.close());
    await once(other, "listening");
    const { port } = other.address() as net.AddressInfo;
    for (const host of ["127.0.0.1", "0.0.0.0"])
      await expect(open(port, host)).rejects.toMatchObject({ code: "EADDRINUSE" });
  }
});

test("once stopped, no connection is accepted, and it ends with the last one that was", async () => {
  const { listeners, server, port } = await open(0);
  let accepted = 0;
  server.on("connection", () => accepted++);
  const sockets = await Promise.all(Array.from({ length: 32 }, () => connect(port)));
  await expect.poll(() => accepted).toBe(32);
  // Node from 26 on closes a connection without a request at once.
  let begun = 0;
  server.on("request", () => begun++);
  for (const socket of sockets) socket.write("GET /hang HTTP/1.1\r\nhost: a\r\n\r\n");
  await expect.poll(() => begun).toBe(32);
  listeners.stop();
  server.close();
  let isEnded = false;
  const ended = listeners.ended().then(() => {
    isEnded = true;
  });
  await expect(connect(port)).rejects.toMatchObject({ code: "ECONNREFUSED" });
  for (let round = 0; round < 20; round++) await setImmediate();
  expect(isEnded).toBe(false);
  for (const socket of sockets) socket.destroy();
  await ended;
});

test("stopped while it is opened, it ends, and no connection is accepted", async () => {
  const server = createServer();
  const listeners = createListeners();
  const opening = listeners.open(server, { host: "127.0.0.1", port: 0 }, async (options) => {
    server.listen(options);
    await once(server, "listening");
    listeners.stop();
  });
  const { port } = await opening;
  server.close();
  await listeners.ended();
  await expect(connect(port)).rejects.toMatchObject({ code: "ECONNREFUSED" });
});

test("opening a port waits for others that open it, but only for so long", async () => {
  const [port = 0] = await freePorts(1);
  const { server } = await open(port);
  // Whoever listens on this name has the turn.
  const turn = net.createServer().listen(`\0phoneproof-port-${port}`);
  onTestFinished(() => void turn.close());
  await once(turn, "listening");
  let now = 0;
  const clock = vi.spyOn(performance, "now").mockImplementation(() => {
    now += 400;
    return now;
  });
  onTestFinished(() => clock.mockRestore());
  await expect(open(port)).rejects.toMatchObject({ code: "EADDRINUSE" });
  expect(server.listening).toBe(true);
});

test("where sockets cannot share a port, a single one accepts the connections", async () => {
  const server = createServer((_request, response) => void response.end("alone"));
  onTestFinished(() => {
    server.close();
    server.closeAllConnections();
  });
  const { port } = await createListeners().open(server, { host: "127.0.0.1", port: 0 }, async (options) => {
    if (options.reusePort) throw new Error("not supported");
    server.listen(options);
    await once(server, "listening");
  });
  expect(await (await fetch(`http://127.0.0.1:${port}`)).text()).toBe("alone");
});
