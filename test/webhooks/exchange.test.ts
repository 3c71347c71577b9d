import { spawn } from "node:child_process";
import { getEventListeners, once } from "node:events";
import { readFileSync, stat } from "node:fs";
import { connect, createServer, type Socket } from "node:net";
import { text } from "node:stream/consumers";
import { setTimeout as delay } from "node:timers/promises";
import { createSecureContext, TLSSocket } from "node:tls";
import { Pool } from "undici";
import { afterEach, describe, expect, onTestFinished, test, vi } from "vitest";
import { keepConnections } from "../../src/webhooks/connections.ts";
import { createEndpoints, type Endpoints, type Exchange } from "../../src/webhooks/endpoints.ts";
import type { ResolvedAddress } from "../../src/webhooks/name-resolution.ts";
import { blockFor } from "../harness/blocking.ts";
import { atFileEnd } from "../harness/endings.ts";
import { deadPort } from "../harness/ports.ts";
import { certificates } from "../rpc/certificates.ts";
import { answerWith, hang, startReceiver, untilReceived } from "./receiver.ts";

const open: Endpoints[] = [];

afterEach(async () => {
  for (const endpoints of open.splice(0)) await endpoints.close();
});

function endpointsOf(options: Partial<Parameters<typeof createEndpoints>[0]> = {}): Endpoints {
  const endpoints = createEndpoints({ allowPrivate: true, ...options });
  open.push(endpoints);
  return endpoints;
}

const message = (url: string) => ({
  url,
  id: "evt_01kaex4mpyf2xbtyt1s6vdr4e9",
  timestamp: 1_763_707_260,
  body: "{}",
  secrets: [Buffer.alloc(32, 1)],
});

/** Starts a TCP server that passes each connection to `serve`; returns its port. */
async function startTcp(serve: (socket: Socket) => void): Promise<number> {
  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on("error", () => {}).on("close", () => sockets.delete(socket));
    serve(socket);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  atFileEnd(async () => {
    for (const socket of sockets) socket.destroy();
    await new Promise((resolve) => server.close(resolve));
  });
  return (server.address() as { port: number }).port;
}

/** Sends a byte every few milliseconds, without end. */
function drip(socket: NodeJS.WritableStream, text: (turn: number) => string): void {
  let turn = 0;
  const timer = setInterval(() => socket.write(text(turn++)), 5);
  socket.on("close", () => clearInterval(timer));
}

describe("the timeout of the whole exchange", () => {
  const timeoutMs = 150;

  test.for([
    {
      name: "an endpoint that never answers",
      start: async () => (await startReceiver(hang)).url,
      status: null,
    },
    {
      name: "a status line that never ends",
      start: async () =>
        `http://127.0.0.1:${await startTcp((socket) => drip(socket, (turn) => (turn === 0 ? "HTTP/1.1 200 " : "O")))}`,
      status: null,
    },
    {
      name: "headers that never end",
      start: async () =>
        `http://127.0.0.1:${await startTcp((socket) =>
          drip(socket, (turn) => (turn === 0 ? "HTTP/1.1 200 OK\r\n" : `x-${turn}: 1\r\n`)),
        )}`,
      status: null,
    },
    {
      name: "a body that drips",
      start: async () => {
        const receiver = await startReceiver((response) => {
          response.writeHead(200);
          drip(response, () => ".");
        });
        return receiver.url;
      },
      status: 200,
    },
    {
      name: "a TLS handshake that is never answered",
      start: async () => `https://127.0.0.1:${await startTcp(() => {})}`,
      status: null,
    },
  ])("cuts off $name", async ({ start, status }) => {
    const url = await start();
    // On a busy machine the status may not have arrived by then: raise the timeout until it has.
    let milliseconds = timeoutMs;
    let exchange = await endpointsOf({ timeoutMs: milliseconds }).send(message(url));
    while (exchange.status !== status && milliseconds < 20_000) {
      milliseconds *= 4;
      exchange = await endpointsOf({ timeoutMs: milliseconds }).send(message(url));
    }
    expect(exchange).toMatchObject({ status, error: `took longer than ${milliseconds / 1000} s` });
    expect(exchange.durationMs).toBeGreaterThanOrEqual(milliseconds - 5);
  });

  test("is 15 s by default", async () => {
    const receiver = await startReceiver();
    const timers = vi.spyOn(globalThis, "setTimeout");
    onTestFinished(() => timers.mockRestore());
    await endpointsOf().send(message(receiver.url));
    expect(timers).toHaveBeenCalledWith(expect.any(Function), 15_000);
  });
});

test.for([
  { status: 200, error: null },
  { status: 204, error: null },
  { status: 299, error: null },
  { status: 300, error: "answered 300: redirects are not followed" },
  { status: 301, error: "answered 301: redirects are not followed" },
  { status: 302, error: "answered 302: redirects are not followed" },
  { status: 307, error: "answered 307: redirects are not followed" },
  { status: 308, error: "answered 308: redirects are not followed" },
  { status: 304, error: "answered 304" },
  { status: 399, error: "answered 399: redirects are not followed" },
  { status: 400, error: "answered 400" },
  { status: 410, error: "answered 410" },
  { status: 429, error: "answered 429" },
  { status: 500, error: "answered 500" },
  { status: 503, error: "answered 503" },
])("an answer of $status is recorded with error $error", async ({ status, error }) => {
  const elsewhere = await startReceiver();
  const receiver = await startReceiver(answerWith(status, { location: elsewhere.url }));
  expect(await endpointsOf().send(message(receiver.url))).toMatchObject({ status, error });
  expect(elsewhere.received).toEqual([]);
});

test.for([
  {
    name: "an answer that is not HTTP",
    serve: (socket: Socket) => socket.end("220 mail.example ESMTP\r\n"),
    error: /Parse Error|HTTP/i,
  },
  {
    name: "a connection that is closed without an answer",
    serve: (socket: Socket) => socket.once("data", () => socket.end()),
    error: /closed|UND_ERR_SOCKET/,
  },
  {
    name: "a connection that is reset",
    serve: (socket: Socket) => socket.once("data", () => socket.resetAndDestroy()),
    error: /ECONNRESET/,
  },
  {
    name: "an answer after an unexpected 100 Continue",
    serve: (socket: Socket) =>
      socket.once("data", () =>
        socket.end("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"),
      ),
    error: /^answered 100 Continue, for which the request does not ask$/,
  },
  {
    name: "interim answers without end",
    serve: (socket: Socket) =>
      socket.once("data", () => {
        const more = () => {
          if (!socket.destroyed) socket.write("HTTP/1.1 103 Early Hints\r\n\r\n".repeat(1_000), more);
        };
        more();
      }),
    error: /^sent more than 16 interim answers \(1xx\)$/,
  },
  {
    name: "a 17th interim answer, even with a final one behind it,",
    serve: (socket: Socket) =>
      socket.once("data", () =>
        socket.end(
          `${"HTTP/1.1 102 Processing\r\n\r\n".repeat(17)}HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n`,
        ),
      ),
    error: /^sent more than 16 interim answers \(1xx\)$/,
  },
  {
    name: "a switch to another protocol",
    serve: (socket: Socket) =>
      socket.once("data", () => socket.write("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n")),
    error: /^sent a response that HTTP does not allow$/,
  },
  {
    name: "a switch to another protocol that names the connection",
    serve: (socket: Socket) =>
      socket.once("data", () =>
        socket.write("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"),
      ),
    error: /^sent a response that HTTP does not allow$/,
  },
  {
    name: "an invalid HTTP status",
    serve: (socket: Socket) =>
      socket.once("data", () => socket.end("HTTP/1.1 099 Low\r\ncontent-length: 0\r\n\r\n")),
    error: /^answered 99, which is no status of HTTP$/,
  },
  {
    name: "headers of more than 16 KiB",
    serve: (socket: Socket) => socket.end(`HTTP/1.1 200 OK\r\nx: ${"x".repeat(20_000)}\r\n\r\n`),
    error: /headers/i,
  },
])("$name is a failure with its own error", async ({ serve, error }) => {
  const port = await startTcp(serve);
  const exchange = await endpointsOf().send(message(`http://127.0.0.1:${port}/`));
  expect(exchange).toMatchObject({ status: null, answer: null });
  expect(exchange.error).toMatch(error);
});

test.for([
  { url: "/hook?token=a%20b&c=d", sent: "/hook?token=a%20b&c=d" },
  { url: "?shop=1", sent: "/?shop=1" },
  { url: "", sent: "/" },
  { url: "/주문?이름=가", sent: encodeURI("/주문?이름=가") },
])("the request is for $sent if the URL ends in '$url'", async ({ url, sent }) => {
  const receiver = await startReceiver();
  await endpointsOf().send(message(receiver.origin + url));
  expect(receiver.received.map(({ path }) => path)).toEqual([sent]);
});

test("up to 16 interim (1xx) answers are skipped", async () => {
  const port = await startTcp((socket) =>
    socket.once("data", () => {
      socket.end(
        `${"HTTP/1.1 102 Processing\r\n\r\n".repeat(16)}HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok`,
      );
    }),
  );
  expect(await endpointsOf().send(message(`http://127.0.0.1:${port}/`))).toMatchObject({
    status: 200,
    error: null,
    answer: "ok",
  });
});

test.for([
  { name: "stops in the character that crosses the limit", rest: "" },
  { name: "continues", rest: "x" },
])("the first KiB of an answer is kept, in whole characters, if it $name", async ({ rest }) => {
  const whole = "x".repeat(1022);
  const receiver = await startReceiver((response) => response.writeHead(200).write(`${whole}가${rest}`));
  // The answer never ends, and the timeout is ten minutes: its end is not awaited.
  const exchange = await endpointsOf({ timeoutMs: 600_000 }).send(message(receiver.url));
  expect(exchange).toMatchObject({ status: 200, error: null, answer: whole });
});

test("a port on which nothing listens is a failure with ECONNREFUSED", async () => {
  const receiver = await startReceiver();
  await receiver.close();
  const exchange = await endpointsOf().send(message(receiver.url));
  expect(exchange.error).toMatch(/ECONNREFUSED/);
});

test("if nothing listens at any address of a name, the error names the first address", async () => {
  const receiver = await startReceiver();
  await receiver.close();
  const addresses = ["127.0.0.1", "127.0.0.2"].map((address) => ({ address, family: 4 }));
  const { port } = new URL(receiver.url);
  const exchange = await endpointsOf({ resolve: async () => addresses }).send(
    message(`http://shop.example:${port}/`),
  );
  expect(exchange.error).toBe(`connect ECONNREFUSED 127.0.0.1:${port}`);
});

test("the error names an address to which this machine has a route, if the name has such a one", async () => {
  const port = await deadPort();
  // No connection can be made to a multicast address.
  const nowhere = { address: "224.0.0.1", family: 4 };
  const errorWith = async (addresses: readonly ResolvedAddress[]) =>
    (await endpointsOf({ resolve: async () => addresses }).send(message(`http://shop.example:${port}/`)))
      .error;
  expect(await errorWith([nowhere, { address: "127.0.0.1", family: 4 }])).toBe(
    `connect ECONNREFUSED 127.0.0.1:${port}`,
  );
  // Of equal addresses, Node would try one.
  expect(await errorWith([nowhere, { ...nowhere, address: "224.0.0.2" }])).toMatch(
    /^connect ENETUNREACH 224\.0\.0\.1/,
  );
});

test("if nothing listens at the first address of a name, the next one is tried", async () => {
  const receiver = await startReceiver();
  const { port } = new URL(receiver.url);
  const addresses = ["127.0.0.99", "127.0.0.1"].map((address) => ({ address, family: 4 }));
  const endpoints = endpointsOf({ resolve: async () => addresses });
  expect(await endpoints.send(message(`http://shop.example:${port}/`))).toMatchObject({ status: 204 });
});

test("an error is recorded as one line of at most 300 characters, without control characters", async () => {
  const resolve = () => Promise.reject(new Error(`no\r\n\tsuch\u0000\u001bname ${"x".repeat(1_000)}`));
  const exchange = await endpointsOf({ resolve }).send(message("http://shop.example/"));
  expect(exchange).toMatchObject({ status: null, error: `no such name ${"x".repeat(287)}` });
});

/** A server with a full backlog: its process is stopped until `goOn`. */
async function startHeldUp() {
  const serve = `require("node:http").createServer((request, response) => response.writeHead(204).end())
    .listen({ port: 0, host: "127.0.0.1", backlog: 1 }, function () { process.stdout.write(String(this.address().port)); })`;
  const server = spawn(process.execPath, ["-e", serve], { stdio: ["ignore", "pipe", "ignore"] });
  onTestFinished(() => void server.kill("SIGKILL"));
  const [printed] = await once(server.stdout, "data");
  server.kill("SIGSTOP");
  const port = Number(printed);
  for (let isFull = false; !isFull; ) {
    const filling = connect(port, "127.0.0.1");
    onTestFinished(() => void filling.destroy());
    isFull = (await Promise.race([once(filling, "connect"), delay(200)])) === undefined;
  }
  return { port, goOn: () => server.kill("SIGCONT") };
}

/** Sends to a name whose first address takes the connection only when the SYN is sent again, after a second. */
async function sendToHeldUp(): Promise<Exchange> {
  const { port, goOn } = await startHeldUp();
  const lookedUp = Promise.withResolvers<void>();
  const endpoints = endpointsOf({
    async resolve() {
      lookedUp.resolve();
      return [
        { address: "127.0.0.1", family: 4 },
        { address: "::1", family: 6 },
      ];
    },
  });
  const sending = endpoints.send(message(`http://shop.example:${port}/`));
  await lookedUp.promise;
  await delay(500);
  goOn();
  return sending;
}

test("one of several addresses has time for a retransmitted SYN before the next is tried", async () => {
  let exchange = await sendToHeldUp();
  // If this machine or that process took longer than the address has, it proves nothing.
  for (let more = 4; exchange.status === null && exchange.durationMs >= 1_500 && more > 0; more--)
    exchange = await sendToHeldUp();
  expect(exchange).toMatchObject({ status: 204, error: null });
});

test("connections are reused, and closed when idle before an endpoint without a keep-alive hint would close them", async () => {
  const closed = Promise.withResolvers<void>();
  let connections = 0;
  const port = await startTcp((socket) => {
    connections += 1;
    socket.on("data", () => socket.write("HTTP/1.1 204 No Content\r\n\r\n"));
    socket.on("end", () => closed.resolve());
  });
  // Time passes only between the exchanges and the end.
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  onTestFinished(() => {
    vi.useRealTimers();
  });
  const endpoints = endpointsOf();
  for (let sent = 0; sent < 6; sent++) await endpoints.send(message(`http://127.0.0.1:${port}/`));
  expect(connections).toBeLessThan(6);
  // Some close them after two seconds.
  vi.advanceTimersByTime(1_900);
  await closed.promise;
});

test("a connection that was idle for too long while the process was busy is not reused", async () => {
  let connections = 0;
  const port = await startTcp((socket) => {
    connections += 1;
    socket.on("data", () => socket.write("HTTP/1.1 204 No Content\r\n\r\n"));
  });
  const endpoints = endpointsOf();
  const send = () => endpoints.send(message(`http://127.0.0.1:${port}/`));
  await send();
  const busy = Promise.withResolvers<Exchange>();
  // In a callback of input or output, as when a query's result arrives: no timer can expire between it and the sending.
  stat(import.meta.filename, () => {
    blockFor(1_500);
    send().then(busy.resolve, busy.reject);
  });
  expect(await busy.promise).toMatchObject({ status: 204 });
  expect(connections).toBe(2);
});

test.for([
  ["behind its answer", "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"],
  ["as the body of a 204", "HTTP/1.1 204 No Content\r\ncontent-length: 40\r\n\r\n"],
])("another answer that an endpoint sends %s is not taken for that to the next event", async ([, answer]) => {
  const unasked = "HTTP/1.1 410 Gone\r\ncontent-length: 0\r\n\r\n";
  const port = await startTcp((socket) => socket.on("data", () => socket.write(answer + unasked)));
  const endpoints = endpointsOf();
  for (let sent = 0; sent < 3; sent++)
    expect(await endpoints.send(message(`http://127.0.0.1:${port}/`))).toMatchObject({ error: null });
});

const ofStranger = createSecureContext({
  cert: readFileSync(certificates.server.cert),
  key: readFileSync(certificates.server.key),
});

/** Counts the pools of connections that have been ended from now on. */
function watchEndedPools(): () => number {
  const ended = vi.spyOn(Pool.prototype, "destroy");
  onTestFinished(() => ended.mockRestore());
  return () => new Set(ended.mock.contexts).size;
}

test.for([
  ["that never answer", () => {}],
  [
    "whose answer does not end",
    (socket: Socket) => drip(socket, (turn) => (turn === 0 ? "HTTP/1.1 200 OK\r\n\r\n" : "x")),
  ],
  ["that refuse the connection", null],
] as const)("nothing is kept of endpoints %s", async ([, serve]) => {
  const port =
    serve === null
      ? await deadPort()
      : await startTcp((socket) => void socket.once("data", () => serve(socket)));
  const endpoints = endpointsOf({ timeoutMs: 100 });
  const endedPools = watchEndedPools();
  // Other addresses than 127.0.0.1 are not this machine's everywhere; each counts as an origin all the same.
  const hosts = ["127.0.0.1", "localhost", "127.0.0.2"];
  await Promise.all(hosts.map((host) => endpoints.send(message(`http://${host}:${port}/`))));
  await expect.poll(endedPools).toBe(hosts.length);
});

test("a connection is reused for as long as the endpoint announces", async () => {
  let connections = 0;
  let seconds = 0;
  const port = await startTcp((socket) => {
    connections += 1;
    const answer = `HTTP/1.1 200 OK\r\nkeep-alive: timeout=${seconds}\r\ncontent-length: 0\r\n\r\n`;
    socket.on("data", (data) => data.includes("POST ") && socket.write(answer));
  });
  const endpoints = endpointsOf();
  const endedPools = watchEndedPools();
  const send = () => endpoints.send(message(`http://127.0.0.1:${port}/`));
  // If this machine stands still for as long as announced, the next announces more.
  let isReused = false;
  for (seconds of [5, 15, 30]) {
    expect(await send()).toMatchObject({ status: 200 });
    const before = connections;
    await delay(1_500);
    expect(await send()).toMatchObject({ status: 200 });
    isReused = connections === before;
    if (isReused) break;
  }
  expect(isReused).toBe(true);
  const [ended, before] = [endedPools(), connections];
  await expect.poll(endedPools).toBe(ended + 1);
  expect(await send()).toMatchObject({ status: 200 });
  expect(connections).toBe(before + 1);
});

test("an exchange that is still connecting keeps its pool when another one with its origin has ended", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout", "clearTimeout"] });
  onTestFinished(() => void vi.useRealTimers());
  const connections = keepConnections({}, 1_000);
  const [ended, connecting] = [1, 2].map(() => connections.to("https://shop.example"));
  ended?.done();
  vi.advanceTimersByTime(10_000);
  expect(connecting?.pool.destroyed).toBe(false);
  connecting?.done();
  vi.advanceTimersByTime(1_000);
  expect(connecting?.pool.destroyed).toBe(true);
});

test("a process that could open no file at its first exchange sends the next", async () => {
  const receiver = await startReceiver();
  const source = new URL("../../src/webhooks/endpoints.ts", import.meta.url);
  const script = `
    import { closeSync, openSync } from "node:fs";
    import { createEndpoints } from ${JSON.stringify(source.href)};
    const { send } = createEndpoints({ allowPrivate: true });
    const message = { ...${JSON.stringify(message(receiver.url))}, secrets: [Buffer.alloc(32, 1)] };
    const files = [];
    try {
      for (;;) files.push(openSync("/dev/null"));
    } catch {}
    const first = await send(message).catch((error) => error);
    for (const file of files) closeSync(file);
    const { status } = await send(message);
    console.log(JSON.stringify({ first: first instanceof Error, status }));`;
  const limited = ["-c", 'ulimit -n 64 && exec "$0" --input-type=module -e "$1"', process.execPath, script];
  const child = spawn("sh", limited, { stdio: ["ignore", "pipe", "inherit"] });
  expect(JSON.parse(await text(child.stdout))).toEqual({ first: true, status: 204 });
});

test("the close ends idle connections at once, and nothing is sent after it", async () => {
  const receiver = await startReceiver();
  const endpoints = endpointsOf();
  await endpoints.send(message(receiver.url));
  const endedPools = watchEndedPools();
  await endpoints.close();
  expect(endedPools()).toBe(1);
  expect(await endpoints.send(message(receiver.url))).toMatchObject({ status: null });
  expect(receiver.received).toHaveLength(1);
});

describe("a failed TLS handshake is reported with its cause, without internals of this process", () => {
  test.for([
    {
      name: "a certificate of an unknown issuer",
      serve: (socket: Socket) => {
        new TLSSocket(socket, { isServer: true, secureContext: ofStranger }).on("error", () => {});
      },
      error: "unable to verify the first certificate (UNABLE_TO_VERIFY_LEAF_SIGNATURE)",
    },
    {
      name: "a server without TLS",
      serve: (socket: Socket) => socket.end("HTTP/1.1 400 Bad Request\r\n\r\n"),
      error: "TLS: wrong version number (ERR_SSL_WRONG_VERSION_NUMBER)",
    },
    {
      name: "a server that refuses the handshake",
      // A fatal alert: handshake_failure.
      serve: (socket: Socket) => socket.once("data", () => socket.end(Buffer.from("15030300020228", "hex"))),
      error: /^TLS: [a-z/ ]*alert handshake failure \(\S+\)$/,
    },
  ])("$name", async ({ serve, error }) => {
    const port = await startTcp(serve);
    const exchange = await endpointsOf().send(message(`https://localhost:${port}/`));
    expect(exchange).toMatchObject({ status: null, answer: null });
    expect(exchange.error).toEqual(typeof error === "string" ? error : expect.stringMatching(error));
  });
});

test("a TLS handshake offers only HTTP/1.1", async () => {
  const hello = Promise.withResolvers<Buffer>();
  const port = await startTcp((socket) =>
    socket.once("data", (data) => {
      hello.resolve(data);
      socket.destroy();
    }),
  );
  await endpointsOf().send(message(`https://localhost:${port}/`));
  const offered = (await hello.promise).toString("latin1");
  expect([offered.includes("\x08http/1.1"), offered.includes("\x02h2")]).toEqual([true, false]);
});

test("of a response that breaks off, its status and what has arrived of it are recorded", async () => {
  const port = await startTcp((socket) =>
    socket.once("data", () => socket.end("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")),
  );
  const exchange = await endpointsOf().send(message(`http://127.0.0.1:${port}/`));
  expect(exchange).toMatchObject({ status: 200, error: expect.any(String), answer: "half" });
});

test("requests have the headers of Standard Webhooks and only the necessary others", async () => {
  const receiver = await startReceiver();
  await endpointsOf().send(message(receiver.url));
  const [request] = receiver.received;
  expect(Object.keys(request?.headers ?? {}).sort()).toEqual([
    "connection",
    "content-length",
    "content-type",
    "host",
    "user-agent",
    "webhook-id",
    "webhook-signature",
    "webhook-timestamp",
  ]);
  expect(request?.headers["webhook-timestamp"]).toBe("1763707260");
  expect(request?.headers["webhook-signature"]).toMatch(/^v1,[A-Za-z0-9+/]{43}=$/);
});

test("an exchange aborted by the end of the process rejects, because its result is unknown", async () => {
  const receiver = await startReceiver(hang);
  const end = new AbortController();
  const endpoints = endpointsOf({ timeoutMs: 600_000 });
  const sending = endpoints.send(message(receiver.url), end.signal);
  await untilReceived(receiver);
  end.abort();
  await expect(sending).rejects.toThrow();
  await expect(endpoints.send(message(receiver.url), end.signal)).rejects.toThrow();
  expect(receiver.received).toHaveLength(1);
});

test("nothing of an exchange that is over stays behind on the signal, which lives as long as the process", async () => {
  const receiver = await startReceiver();
  const { signal } = new AbortController();
  await endpointsOf().send(message(receiver.url), signal);
  expect(getEventListeners(signal, "abort")).toEqual([]);
});

test("so does one that is aborted while its endpoint's name is still looked up", async () => {
  const asked = Promise.withResolvers<void>();
  const resolve = () => {
    asked.resolve();
    return new Promise<never>(() => {});
  };
  const end = new AbortController();
  const sending = endpointsOf({ timeoutMs: 600_000, resolve }).send(
    message("http://shop.example"),
    end.signal,
  );
  await asked.promise;
  end.abort();
  await expect(sending).rejects.toThrow();
});
