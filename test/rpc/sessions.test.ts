import { once } from "node:events";
import { readFileSync } from "node:fs";
import http2, {
  type ClientHttp2Session,
  type Http2Server,
  type ServerHttp2Session,
  type ServerHttp2Stream,
} from "node:http2";
import net from "node:net";
import { text } from "node:stream/consumers";
import { setTimeout as delay, setImmediate } from "node:timers/promises";
import tls from "node:tls";
import { afterEach, expect, onTestFinished, test, vi } from "vitest";
import { readSessionsInTurns } from "../../src/rpc/session-turns.ts";
import { keepSessions } from "../../src/rpc/sessions.ts";
import { atFileEnd } from "../harness/endings.ts";
import { callHeaders, endHeaders, endStream, frame, preface } from "../security/http2-frames.ts";
import { certificates } from "./certificates.ts";

afterEach(() => {
  vi.useRealTimers();
});

test("a connection without a call for five minutes is closed; one with an idle open stream is not", async () => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval", "performance"] });
  const server = http2.createServer();
  keepSessions().watch(server);
  const streams: ServerHttp2Stream[] = [];
  server.on("stream", (stream) => {
    streams.push(stream);
    stream.respond();
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const [unused, silent] = [await connectTo(server), await connectTo(server)];
  for (const { client } of [unused, silent]) {
    const stream = client.request();
    stream.on("error", () => {}).resume();
    await once(stream, "response");
  }
  const end = async (stream: ServerHttp2Stream | undefined) => {
    if (stream === undefined) throw new Error("no stream was opened");
    stream.end();
    await once(stream, "close");
  };
  await end(streams[0]);

  await pass(300_000, [unused, silent]);
  expect([unused.session.closed, silent.session.closed]).toEqual([false, false]);
  await pass(30_000, [unused, silent]);
  expect([unused.session.closed, silent.session.closed]).toEqual([true, false]);

  // The five minutes start at the end of the last call.
  await end(streams[1]);
  await pass(300_000, [silent]);
  expect(silent.session.closed).toBe(false);
  await pass(30_000, [silent]);
  expect(silent.session.closed).toBe(true);
  server.close();
});

test("a client that sends GOAWAY and keeps its connection open is disconnected", async () => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
  const server = http2.createServer();
  keepSessions().watch(server);
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as net.AddressInfo;
  const [[socket], [session]] = (await Promise.all([
    once(server, "connection"),
    once(server, "session"),
    openAndLeave(port),
  ])) as unknown as [[net.Socket], [ServerHttp2Session]];
  const closed = once(socket, "close");
  await vi.waitUntil(() => session.destroyed, { timeout: 45_000 });
  vi.advanceTimersByTime(30_000);
  await closed;
  // Nothing is left of the connection that would look at it again.
  await vi.waitUntil(() => vi.getTimerCount() === 0, { timeout: 45_000 });
  server.close();
});

test("a client that sends what is no frame after its GOAWAY, and leaves with a call open, is forgotten within seconds", async () => {
  const { client, session, socket } = await goAwayWithCall((stream) => stream.respond());
  // It may say that it leaves more than once.
  client.resume().write(frame("goAway", 0, 0, Buffer.alloc(8)));
  // It may have calls open, and answers to await.
  vi.advanceTimersByTime(10_000);
  expect(session.destroyed).toBe(false);

  const closed = once(socket, "close");
  client.end(Buffer.alloc(30, "no frame"));
  await vi.waitUntil(() => socket.isPaused() && socket.writableLength === 0, { timeout: 45_000 });
  vi.advanceTimersByTime(2_000);
  expect(session.destroyed).toBe(true);
  await closed;
  await vi.waitUntil(() => vi.getTimerCount() === 0, { timeout: 45_000 });
});

test("a client that goes on with its calls after its GOAWAY is not cut, if it is being written to each time it is looked at", async () => {
  const { client, session, socket } = await goAwayWithCall((stream) => stream.respond());
  client.resume();
  let looks = 0;
  // While it writes: what it has written is on its way, and it does not know that yet.
  socket.on("pause", () =>
    process.nextTick(() => {
      if (looks === 10 || !socket.isPaused() || socket.writableLength > 0) return;
      looks += 1;
      vi.advanceTimersByTime(1_000);
    }),
  );
  // Each is answered.
  client.write(Buffer.concat(Array.from({ length: 1_000 }, () => frame("ping", 0, 0, Buffer.alloc(8)))));
  await vi.waitUntil(() => session.destroyed || looks === 10, { timeout: 45_000 });
  expect(session.destroyed).toBe(false);
  // But once it has failed.
  client.end(Buffer.alloc(30, "no frame"));
  await vi.waitUntil(() => socket.isPaused() && socket.writableLength === 0, { timeout: 45_000 });
  vi.advanceTimersByTime(2_000);
  expect(session.destroyed).toBe(true);
});

test("a client that sends GOAWAY and is slow to take what it is sent is not disconnected for that", async () => {
  // More than the kernels of both sides hold.
  const answer = Buffer.alloc(64 * 1024 * 1024);
  const { client, session, socket } = await goAwayWithCall((stream) => {
    stream.respond();
    stream.end(answer);
  });
  for (let sent = -1; socket.bytesWritten > sent; await delay(200)) sent = socket.bytesWritten;
  vi.advanceTimersByTime(10_000);
  expect(session.destroyed).toBe(false);
  let received = 0;
  client.on("data", ({ length }: Buffer) => {
    received += length;
  });
  client.resume();
  await vi.waitUntil(() => received > answer.length, { timeout: 45_000 });
});

test.for([
  { name: "in plain text", overTls: false },
  { name: "over TLS", overTls: true },
])("a connection $name whose client does not answer a ping by the next one is cut, unless it sends something else", async ({
  overTls,
}) => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
  const { cert, key } = certificates.server;
  const server = overTls
    ? http2.createSecureServer({ cert: readFileSync(cert), key: readFileSync(key) })
    : http2.createServer();
  keepSessions().watch(server as Http2Server);
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as net.AddressInfo;
  const accepted = once(server, "session");
  const connect = async () => {
    const socket = net.connect(port, "127.0.0.1").on("error", () => {});
    atFileEnd(() => socket.destroy());
    await Promise.all([once(server, "connection"), once(socket, "connect")]);
    return socket;
  };
  const plain = await connect();
  // Another arrives before the first has negotiated TLS.
  await connect();
  const ca = readFileSync(certificates.authority);
  const client = overTls ? tls.connect({ socket: plain, ca, ALPNProtocols: ["h2"] }) : plain;
  client.on("error", () => {}).resume();
  // The beginning of a frame of a hundred bytes, of a type that every implementation ignores.
  const beginning = Buffer.from([0, 0, 100, 0xfe, 0, 0, 0, 0, 0]);
  client.write(Buffer.concat([preface, frame("settings", 0, 0, Buffer.alloc(0)), beginning]));
  const [session] = (await accepted) as [ServerHttp2Session];
  vi.advanceTimersByTime(30_000);
  expect(session.destroyed).toBe(false);
  // On a slow network, a long message may still be arriving, and the answer to the ping waits behind it. Node refuses the
  // eleventh ping without an answer.
  for (let looks = 0; looks < 12; looks++) {
    const { bytesRead } = session.socket;
    client.write("\0");
    await vi.waitUntil(() => session.socket.bytesRead > bytesRead, { timeout: 45_000 });
    vi.advanceTimersByTime(30_000);
    expect(session.destroyed).toBe(false);
  }
  vi.advanceTimersByTime(30_000);
  expect(session.destroyed).toBe(true);
  server.close();
});

test("a client that takes nothing of what it is sent, and answers no ping, is disconnected", async () => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
  const server = http2.createServer();
  keepSessions().watch(server);
  const answering = new Promise<void>((resolve) => {
    server.on("stream", (stream) => {
      stream.on("error", () => {});
      stream.respond();
      // More than the kernels of both sides hold.
      stream.end(Buffer.alloc(64 * 1024 * 1024));
      resolve();
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as net.AddressInfo;
  const accepted = Promise.all([once(server, "connection"), once(server, "session")]);
  const client = net.connect(port, "127.0.0.1");
  client.on("error", () => {}).pause();
  atFileEnd(() => client.destroy());
  const initialWindow = Buffer.from([0, 4, 0x3f, 0xff, 0xff, 0xff]);
  const moreWindow = Buffer.from([0x3f, 0xff, 0, 0]);
  client.write(
    Buffer.concat([
      preface,
      frame("settings", 0, 0, initialWindow),
      frame("windowUpdate", 0, 0, moreWindow),
      frame("headers", endStream | endHeaders, 1, callHeaders("/any/Call")),
    ]),
  );
  const [[socket], [session]] = (await accepted) as unknown as [[net.Socket], [ServerHttp2Session]];
  await answering;
  // Until nothing more fits into the kernels' buffers.
  for (let sent = -1; socket.bytesWritten > sent; await delay(200)) sent = socket.bytesWritten;
  const closed = once(socket, "close");
  vi.advanceTimersByTime(60_000);
  expect(session.destroyed).toBe(true);
  vi.advanceTimersByTime(60_000);
  await closed;
  server.close();
});

test("a stop cuts the connection of a client that has frozen, once its time is up", async () => {
  const server = http2.createServer();
  const sessions = keepSessions();
  sessions.watch(server);
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as net.AddressInfo;
  // Without an open stream, Node cuts the connection itself.
  server.on("stream", (stream) => stream.on("error", () => {}));
  const accepted = Promise.all([once(server, "connection"), once(server, "stream")]);
  const client = net.connect({ port, host: "127.0.0.1", allowHalfOpen: true });
  client.on("error", () => {}).pause();
  atFileEnd(() => client.destroy());
  const call = frame("headers", endHeaders, 1, callHeaders("/"));
  client.write(Buffer.concat([preface, frame("settings", 0, 0, Buffer.alloc(0)), call]));
  const [[socket]] = (await accepted) as unknown as [[net.Socket], [ServerHttp2Stream]];
  const closed = once(socket, "close");
  server.close();
  sessions.close(10);
  await closed;
});

test("a stop leaves open calls their time", async () => {
  const server = http2.createServer();
  const sessions = keepSessions();
  sessions.watch(server);
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { client } = await connectTo(server);
  const call = client.request();
  const [stream] = (await once(server, "stream")) as [ServerHttp2Stream];
  stream.respond();
  server.close();
  sessions.close(3_600_000);
  await delay(20);
  await setImmediate();
  stream.end("done");
  expect(await text(call)).toBe("done");
});

/** Both sides of a connection. */
interface Connection {
  readonly client: ClientHttp2Session;
  readonly session: ServerHttp2Session;
}

/** A client whose windows have room for everything opens a call and sends GOAWAY. It takes nothing before it is resumed. */
async function goAwayWithCall(answer: (stream: ServerHttp2Stream) => void) {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
  const server = http2.createServer();
  readSessionsInTurns().watch(server);
  keepSessions().watch(server);
  server.on("stream", (stream) => answer(stream.on("error", () => {})));
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as net.AddressInfo;
  const accepted = Promise.all([once(server, "connection"), once(server, "session")]);
  const client = net.connect(port, "127.0.0.1");
  client.on("error", () => {}).pause();
  onTestFinished(() => {
    client.destroy();
    server.close();
  });
  const window = Buffer.from([0x3f, 0xff, 0, 0]);
  client.write(
    Buffer.concat([
      preface,
      frame("settings", 0, 0, Buffer.concat([Buffer.of(0, 4), window])),
      frame("windowUpdate", 0, 0, window),
      frame("headers", endHeaders, 1, callHeaders("/any/Call")),
      frame("goAway", 0, 0, Buffer.alloc(8)),
    ]),
  );
  const [[socket], [session]] = (await accepted) as unknown as [[net.Socket], [ServerHttp2Session]];
  await vi.waitUntil(() => session.closed, { timeout: 45_000 });
  return { client, session, socket };
}

async function connectTo(server: Http2Server): Promise<Connection> {
  const { port } = server.address() as net.AddressInfo;
  const accepted = once(server, "session");
  const client = http2.connect(`http://127.0.0.1:${port}`);
  client.on("error", () => {});
  atFileEnd(() => client.destroy());
  const [session] = (await accepted) as [ServerHttp2Session];
  return { client, session };
}

/** Lets time pass, with each ping of the connections answered. */
async function pass(milliseconds: number, connections: readonly Connection[]): Promise<void> {
  for (let passed = 0; passed < milliseconds; passed += 30_000) {
    const before = connections.map(({ session }) => session.socket.bytesRead);
    vi.advanceTimersByTime(30_000);
    for (const [index, { session }] of connections.entries()) {
      // Nothing but the answer arrives: a ping of this test's own would be a sign of life, too.
      const isAnswered = () => session.socket.bytesRead > (before[index] ?? 0);
      await vi.waitUntil(() => session.closed || isAnswered(), { timeout: 45_000 });
    }
  }
}

/** Opens a connection, sends GOAWAY and leaves its side open. */
async function openAndLeave(port: number): Promise<void> {
  const client = net.connect({ port, host: "127.0.0.1", allowHalfOpen: true });
  client.on("error", () => {}).resume();
  atFileEnd(() => client.destroy());
  await once(client, "connect");
  client.write(Buffer.concat([preface, frame("goAway", 0, 0, Buffer.alloc(8))]));
}
