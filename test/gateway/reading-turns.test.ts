/** How much of what clients send is parsed in a turn of the event loop. */

import { once } from "node:events";
import { createServer, type RequestListener } from "node:http";
import net from "node:net";
import { setImmediate } from "node:timers/promises";
import v8 from "node:v8";
import vm from "node:vm";
import { pino } from "pino";
import { describe, expect, onTestFinished, test, vi } from "vitest";
import { createHttpServer } from "../../src/gateway/http-server.ts";
import { readRequestsInTurns, trust } from "../../src/request-turns.ts";
import { blockFor } from "../harness/blocking.ts";
import { countTime, readInTurns } from "../harness/reading.ts";
import { statusesOf } from "./raw-http.ts";

function serverThat(listener: RequestListener) {
  const unused = () => {};
  const stopping = new AbortController().signal;
  const log = pino({ level: "silent" });
  return createHttpServer({ log, onAnswered: unused, breakOff: unused, stopping }, listener);
}

const answering: RequestListener = (_request, response) => void response.end();
const reading: RequestListener = (request) => void request.resume();

test("of requests that many connections pipeline at once, those of a few are parsed in a turn", async () => {
  const count = 2_000;
  const bytes = "GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(count);
  const turns = await readInTurns(serverThat(answering), "requests", bytes, count);
  expect(Math.max(...turns)).toBeLessThan(3 * count);
});

test.for([
  { name: "is read", listener: reading },
  { name: "was refused before it was read", listener: answering },
])("of chunks of a byte of a body that $name, those of a few are parsed in a turn", async ({ listener }) => {
  const count = 8_000;
  const head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  const bytes = head + "1\r\na\r\n".repeat(count);
  const turns = await readInTurns(serverThat(listener), "chunks", bytes, count);
  expect(Math.max(...turns)).toBeLessThan(7 * count);
});

test("who sends little does not wait for the turns of those who send a lot, nor do they wait for ever", async () => {
  const clients = 20;
  const read = new Map<string, number>();
  const server = serverThat((request, response) => {
    const path = request.url ?? "";
    read.set(path, (read.get(path) ?? 0) + 1);
    response.end();
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as net.AddressInfo;
  const sockets = Array.from({ length: clients + 1 }, () => net.connect({ port, host: "127.0.0.1" }));
  onTestFinished(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  await Promise.all(sockets.map((socket) => once(socket.on("error", () => {}).resume(), "connect")));
  const [little, ...large] = sockets as [net.Socket, ...net.Socket[]];
  for (const [index, socket] of large.entries()) {
    const bytes = `GET /${index} HTTP/1.1\r\nHost: a\r\n\r\n`.repeat(2_000);
    const writeOn = () => {
      while (!socket.destroyed && socket.write(bytes));
    };
    socket.on("drain", writeOn);
    writeOn();
  }
  const areAllRead = () => large.every((_, index) => read.has(`/${index}`));
  while (!areAllRead()) await setImmediate();
  read.clear();
  const waits: number[] = [];
  while (waits.length < 10) {
    little.write(`GET /little${waits.length} HTTP/1.1\r\nHost: a\r\n\r\n`);
    let turns = 0;
    for (; !read.has(`/little${waits.length}`); turns++) await setImmediate();
    waits.push(turns);
  }
  expect(Math.max(...waits)).toBeLessThan(0.5 * clients);
  while (!areAllRead()) await setImmediate();
});

test("of what many clients send at once, 64 MiB wait, who sends more is disconnected, and who sends little is answered", async () => {
  // Each piece takes all the time of a turn.
  let now = performance.now();
  const clock = vi.spyOn(performance, "now").mockImplementation(() => {
    now += 5;
    return now;
  });
  onTestFinished(() => void clock.mockRestore());
  const server = serverThat(answering);
  let closed = 0;
  server.on("connection", (socket) => void socket.on("close", () => void closed++));
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as net.AddressInfo;
  const sockets: net.Socket[] = [];
  const connect = () => {
    const socket = net.connect({ port, host: "127.0.0.1" }).on("error", () => {});
    sockets.push(socket);
    return socket;
  };
  onTestFinished(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  const request = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
  const many = request.repeat(3_000);
  while (closed === 0) {
    connect().resume().write(many);
    await setImmediate();
  }
  // Of each, 64 KiB at most.
  expect(sockets.length).toBeGreaterThan(1_000);
  const little = connect();
  little.write(request);
  const [answer] = (await once(little, "data")) as [Buffer];
  expect(answer.toString()).toMatch(/^HTTP\/1\.1 200 /);
});

test.for([
  { name: "requests", head: "", item: `GET / HTTP/1.1\r\nHost: ${"a".repeat(130)}\r\n\r\n` },
  {
    name: "chunks",
    head: "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
    item: "8\r\naaaaaaaa\r\n",
  },
])("no more is read of connections of which $name wait for their turn", async ({ name, head, item }) => {
  const clients = 20;
  const parsed = new Map<net.Socket, number>();
  const count = (socket: net.Socket, items: number) =>
    parsed.set(socket, (parsed.get(socket) ?? 0) + items * item.length);
  const server = serverThat((request, response) => {
    const { socket } = request;
    if (name === "requests") count(socket, 1);
    // Those that arrive before the body is read are reported together.
    else request.on("data", ({ length }: Buffer) => count(socket, length / 8));
    request.resume().on("end", () => response.end());
  });
  server.on("connection", (socket) => parsed.set(socket, head.length));
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as net.AddressInfo;
  const sockets = Array.from({ length: clients }, () => net.connect({ port, host: "127.0.0.1" }).resume());
  onTestFinished(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  // More than a dozen pieces at once.
  countTime(0.02);
  // Node reads so much at once.
  const oneRead = 64 * 1024;
  const bytes = head + item.repeat((3 * oneRead) / item.length);
  for (const socket of sockets) socket.write(bytes);
  let mostWaiting = 0;
  const areAllParsed = () =>
    parsed.size === clients && [...parsed.values()].every((length) => length === bytes.length);
  while (!areAllParsed()) {
    await setImmediate();
    for (const [socket, length] of parsed) mostWaiting = Math.max(mostWaiting, socket.bytesRead - length);
  }
  expect(mostWaiting).toBeLessThan(oneRead + item.length);
});

const fields = Array.from({ length: 500 }, (_, index) => index.toString(36));

describe("a connection that has presented a valid credential", () => {
  const before = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
  const trusting: RequestListener = (request, response) => {
    trust(request.socket);
    request.resume();
    response.end();
  };

  test.for([
    { name: "requests", head: "GET / HTTP/1.1\r\nHost: a\r\n", count: 12_000 },
    { name: "parameters", head: `GET /?${fields.join("&")} HTTP/1.1\r\nHost: a\r\n`, count: 300 },
    { name: "headers", head: `GET / HTTP/1.1\r\nHost: a\r\n${fields.join(":\r\n")}:\r\n`, count: 300 },
    {
      name: "trailers",
      head: `POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n${fields.join(":\r\n")}:\r\n`,
      count: 300,
    },
  ])("is read at once once, and in pieces from then on, if it sends many $name", async ({ head, count }) => {
    const clients = 20;
    const bytes = `${head}\r\n`.repeat(count);
    const turns = await readInTurns(serverThat(trusting), "requests", bytes, count, { clients, before });
    const inOneRead = (64 * 1024 * count) / bytes.length;
    const atOnce = turns.filter((parsed) => parsed > 5 * inOneRead).reduce((sum, parsed) => sum + parsed, 0);
    expect(atOnce).toBeGreaterThan(0);
    expect(atOnce).toBeLessThan(4 * clients * inOneRead);
  });

  test("is read in pieces from then on if it sends chunks of a byte", async () => {
    const count = 50_000;
    const bytes = `POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n${"1\r\na\r\n".repeat(count)}`;
    const turns = await readInTurns(serverThat(trusting), "chunks", bytes, count, { before });
    const atOnce = turns.filter((parsed) => parsed > 50_000).reduce((sum, parsed) => sum + parsed, 0);
    expect(atOnce).toBeLessThan(0.5 * 20 * count);
  });

  test("is read at once if it has sent a lot in total, and in pieces for good once it has sent a lot at once", async () => {
    const server = serverThat(trusting);
    let parsed = 0;
    server.on("request", () => void parsed++);
    server.listen(0, "127.0.0.1");
    await once(server, "listening");
    const { port } = server.address() as net.AddressInfo;
    const client = net.connect({ port, host: "127.0.0.1" }).resume();
    onTestFinished(() => {
      client.destroy();
      server.close();
    });
    // A turn's time is over after a few pieces.
    countTime(1);
    /** How many of so many requests are parsed in a turn at most. */
    const mostInTurn = async (count: number) => {
      client.write(before.repeat(count));
      const [until, turns] = [parsed + count, [0]];
      while (parsed < until) {
        const parsedThen = parsed;
        await setImmediate();
        turns.push(parsed - parsedThen);
      }
      return Math.max(...turns);
    };
    for (let sent = 0; sent < 200; sent++) await mostInTurn(1);
    expect(await mostInTurn(1_000)).toBeGreaterThan(500);
    await mostInTurn(1);
    expect(await mostInTurn(1_000)).toBeLessThan(500);
  });
});

test("a head that took too long only because what was sent of it waits for its turn is not refused", async () => {
  const server = serverThat((request, response) => {
    response.end();
    if (request.url === "/first") {
      server.headersTimeout = 500;
      // Until the next look at what takes too long.
      blockFor(1_200);
    } else blockFor(20);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as net.AddressInfo;
  const connect = async () => {
    const accepted = once(server, "connection") as Promise<[net.Socket]>;
    const socket = net.connect({ port, host: "127.0.0.1" }).on("error", () => {});
    onTestFinished(() => void socket.destroy());
    return { socket, accepted: (await accepted)[0] };
  };
  onTestFinished(() => void server.close());
  const [first, second, slow] = [await connect(), await connect(), await connect()];
  let received = "";
  slow.socket.on("data", (piece) => {
    received += piece;
  });
  const closed = new Promise((resolve) => void slow.socket.on("close", resolve));
  const [begun, rest] = ["GET / HTTP/1.1\r\nHo", "st: a\r\nConnection: close\r\n\r\n"];
  slow.socket.write(begun);
  while (slow.accepted.bytesRead < begun.length) await setImmediate();
  // A connection that was just read would be read before the others.
  for (let turn = 0; turn < 5; turn++) await setImmediate();
  // In this order, in one turn: the first takes all of its time, and the second all of what is left for those that wait then.
  first.socket.write("GET /first HTTP/1.1\r\nHost: a\r\n\r\n");
  second.socket.write("GET /second HTTP/1.1\r\nHost: a\r\n\r\n");
  slow.socket.write(rest);
  await closed;
  expect(received).toBe("");
});

/** How many requests end in each turn in which any do, when so many clients leave at once with `count` unanswered ones each. */
async function endsInTurns(clients: number, count: number): Promise<number[]> {
  const turns = [0];
  let begun = 0;
  const server = serverThat((request) => {
    begun += 1;
    request.on("close", () => turns.push((turns.pop() ?? 0) + 1));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  const { port } = server.address() as net.AddressInfo;
  const sockets = Array.from({ length: clients }, () => net.connect({ port, host: "127.0.0.1" }));
  for (const socket of sockets) socket.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(count));
  while (begun < clients * count) await setImmediate();
  for (const socket of sockets) socket.resetAndDestroy();
  while (turns.reduce((sum, inTurn) => sum + inTurn) < clients * count) {
    turns.push(0);
    await setImmediate();
  }
  return turns.filter((ended) => ended > 0);
}

test("of clients that leave at once with many unanswered requests, a few are done with in a turn", async () => {
  const [clients, count] = [100, 500];
  expect(Math.max(...(await endsInTurns(clients, count)))).toBeLessThan(0.5 * clients * count);
});

test("of clients that leave at once with a few unanswered requests, many are done with in a turn", async () => {
  const clients = 500;
  expect((await endsInTurns(clients, 2)).length).toBeLessThan(0.5 * clients);
  // That they end without stack traces is over with them.
  expect(new Error("later").stack).toContain("reading-turns.test.ts");
});

test("a client that has half-closed has sent all that Node read before that, although it waits for its turn", async () => {
  const [before, behind] = [10, 2_000];
  let begun = 0;
  let answerFirst = () => {};
  const server = serverThat((_request, response) => {
    // Nobody is read while this much waits to be sent.
    if (++begun > 1) response.end(begun <= before ? "a".repeat(10_000) : "");
    else answerFirst = () => void response.end();
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as net.AddressInfo;
  const accepted = once(server, "connection") as Promise<[net.Socket]>;
  const client = net.connect({ port, host: "127.0.0.1", allowHalfOpen: true });
  onTestFinished(() => {
    client.destroy();
    server.close();
  });
  const [socket] = await accepted;
  const request = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
  client.write(request.repeat(before));
  while (begun < before) await setImmediate();
  client.end(request.repeat(behind));
  // Node reads ahead.
  while (socket.readableLength < behind * request.length) await setImmediate();
  for (let turn = 0; turn < 50; turn++) await setImmediate();
  answerFirst();
  expect(await statusesOf(client)).toEqual(new Array(before + behind).fill("HTTP/1.1 200"));
});

test("requests that wait for their turn do not begin once a response has closed their connection", async () => {
  let isClosing = false;
  let begunThen = 0;
  const server = serverThat((_request, response) => {
    if (isClosing) begunThen += 1;
    response.shouldKeepAlive = false;
    response.on("finish", () => {
      isClosing = true;
    });
    response.end();
    // Its connection has taken all of its time.
    blockFor(1);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  const { port } = server.address() as net.AddressInfo;
  const client = net.connect({ port, host: "127.0.0.1" });
  client.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(1_000));
  expect(await statusesOf(client)).toEqual(["HTTP/1.1 200"]);
  expect(begunThen).toBe(0);
});

test("once a request has closed its connection, nothing begins of what Node still held of it", async () => {
  const urls: (string | undefined)[] = [];
  const server = createServer(({ url, socket }) => {
    urls.push(url);
    socket.destroy();
  });
  readRequestsInTurns(server);
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  const { port } = server.address() as net.AddressInfo;
  const accepted = once(server, "connection") as Promise<[net.Socket]>;
  net.connect({ port, host: "127.0.0.1" }).resume();
  const [socket] = await accepted;
  const closed = once(socket, "close");
  // As much as is parsed before the time is looked at.
  const request = (path: string) => `GET ${path} HTTP/1.1\r\nHost: ${"a".repeat(999 - path.length)}\r\n\r\n`;
  socket.pause();
  socket.push(request("/closing") + request("/dropped"));
  socket.push(request("/behind"));
  socket.resume();
  await closed;
  expect(urls).toEqual(["/closing"]);
});

test("connections are not kept in memory once they have closed, whether or not they waited for their turn then", async () => {
  const begun: WeakRef<net.Socket>[] = [];
  const server = serverThat((request, response) => {
    if (!begun.some((known) => known.deref() === request.socket)) begun.push(new WeakRef(request.socket));
    response.end();
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  const { port } = server.address() as net.AddressInfo;
  const clients = [1, 1, ...Array<number>(18).fill(4_000)].map((count) => {
    const socket = net.connect({ port, host: "127.0.0.1" });
    socket.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n".repeat(count));
    return new Promise((closed) =>
      socket
        .on("error", () => {})
        .resume()
        .on("close", closed),
    );
  });
  while (begun.length < clients.length) await setImmediate();
  server.closeAllConnections();
  await Promise.all(clients);
  for (let turn = 0; turn < 50; turn++) await setImmediate();
  v8.setFlagsFromString("--expose-gc");
  vm.runInNewContext("gc")();
  expect(begun.filter((connection) => connection.deref() !== undefined)).toHaveLength(0);
});

test("what was parsed waits no longer: a client may send more than 64 MiB over time", async () => {
  const server = serverThat((request, response) => request.resume().on("end", () => response.end()));
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as net.AddressInfo;
  const socket = net.connect({ port, host: "127.0.0.1" });
  onTestFinished(() => {
    socket.destroy();
    server.close();
  });
  countTime();
  const body = Buffer.alloc(80 << 20);
  socket.write(`POST / HTTP/1.1\r\nHost: a\r\nContent-Length: ${body.length}\r\n\r\n`);
  socket.write(body);
  const [answer] = (await once(socket, "data")) as [Buffer];
  expect(String(answer)).toMatch(/^HTTP\/1\.1 200 /);
});
