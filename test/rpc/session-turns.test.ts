/** How much of what clients send is parsed in a turn of the event loop. */

import { once } from "node:events";
import { readFileSync } from "node:fs";
import http2, { type Http2Server, type Http2Session } from "node:http2";
import net from "node:net";
import { setImmediate } from "node:timers/promises";
import tls from "node:tls";
import v8 from "node:v8";
import vm from "node:vm";
import { expect, onTestFinished, test, vi } from "vitest";
import { readSessionsInTurns } from "../../src/rpc/session-turns.ts";
import { keepSessions } from "../../src/rpc/sessions.ts";
import { countTime } from "../harness/reading.ts";
import { callHeaders, endHeaders, endStream, frame, preface } from "../security/http2-frames.ts";
import { certificates } from "./certificates.ts";

const [clients, sentBytes] = [20, 60_000];

/** So much of a session has been parsed, in bytes. */
const parsedOf = ({ socket }: Http2Session) => (socket as net.Socket).bytesRead;

/** A server with so many clients, which have sent their preface. */
async function serverWithClients({
  overTls = false,
  maxVersion = "TLSv1.3" as tls.SecureVersion,
  answerBytes = 0,
  answered = 1,
} = {}) {
  const { watch, admit } = readSessionsInTurns();
  const sessions: Http2Session[] = [];
  /** The server's sockets. */
  const reported: net.Socket[] = [];
  const { cert, key } = certificates.server;
  const server = overTls
    ? http2.createSecureServer({ cert: readFileSync(cert), key: readFileSync(key) })
    : http2.createServer();
  watch(server as Http2Server);
  server.on(overTls ? "secureConnection" : "connection", (socket: net.Socket) => reported.push(socket));
  server.on("session", (session) => sessions.push(session));
  server.on("sessionError", () => {});
  server.on("stream", (stream) => {
    stream.on("error", () => {}).resume();
    const isAnswered = sessions.slice(0, answered).some((session) => session === stream.session);
    if (answerBytes > 0 && isAnswered && stream.id === 1) stream.end(Buffer.alloc(answerBytes));
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as net.AddressInfo;
  const sockets: net.Socket[] = [];
  onTestFinished(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  while (sockets.length < clients) {
    const plain = net.connect({ port, host: "127.0.0.1" });
    const ca = readFileSync(certificates.authority);
    const socket = overTls ? tls.connect({ socket: plain, ca, ALPNProtocols: ["h2"], maxVersion }) : plain;
    sockets.push(socket.on("error", () => {}));
    await once(socket, overTls ? "secureConnect" : "connect");
    socket.write(preface);
    while (sessions.length < sockets.length) await setImmediate();
    // The server's settings.
    await once(socket, "data");
  }
  return { admit, server, reported, sessions, sockets };
}

const sum = (numbers: readonly number[]) => numbers.reduce((sum, number) => sum + number, 0);

/** Sends this on all connections. Resolves with how many bytes were parsed in each turn until all was. */
async function parsedInTurns(
  { sessions, sockets }: Awaited<ReturnType<typeof serverWithClients>>,
  bytes: Buffer,
): Promise<number[]> {
  const parsed = () => sum(sessions.map(parsedOf));
  const turns: number[] = [];
  for (const socket of sockets) socket.resume().write(bytes);
  for (let [start, before] = [parsed(), parsed()]; before - start < clients * bytes.length; ) {
    await setImmediate();
    turns.push(parsed() - before);
    before = parsed();
  }
  return turns;
}

const repeated = (bytes: Buffer) =>
  Buffer.concat(Array.from({ length: Math.floor(sentBytes / bytes.length) }, () => bytes));

const calls = (from: number, to: number) =>
  Buffer.concat(
    Array.from({ length: to - from }, (_, index) =>
      frame("headers", endHeaders | endStream, 2 * (from + index) + 1, callHeaders("/")),
    ),
  );
const opened = frame("headers", endHeaders, 1, callHeaders("/"));
const kinds: Record<string, Buffer> = {
  "open streams": calls(0, 1_000),
  "send data in frames of a byte": Buffer.concat([opened, repeated(frame("data", 0, 1, Buffer.of(0)))]),
  "send window updates": repeated(frame("windowUpdate", 0, 0, Buffer.of(0, 0, 0, 1))),
  "send header blocks of many fields": Buffer.concat(
    [1, 3, 5, 7].map((id) =>
      frame("headers", endHeaders, id, Buffer.concat([callHeaders("/"), Buffer.alloc(14_000, 0x90)])),
    ),
  ),
};

const ways = [
  { name: "in plain text", overTls: false },
  { name: "over TLS", overTls: true },
];

for (const { name, overTls } of ways) {
  test.for(
    Object.entries(kinds),
  )(`many connections that %s at once ${name} have less parsed in a turn than one has sent`, async ([
    ,
    bytes,
  ]) => {
    const server = await serverWithClients({ overTls });
    countTime();
    expect(Math.max(...(await parsedInTurns(server, bytes)))).toBeLessThan(sentBytes / 2);
  });
}

test("so it is on connections with a valid credential, of which more is parsed", async () => {
  const server = await serverWithClients();
  for (const session of server.sessions) server.admit(session);
  // As if each piece took as long as a connection may take at once.
  countTime(2);
  const turns = await parsedInTurns(server, kinds["send window updates"] as Buffer);
  expect(Math.max(...turns)).toBeGreaterThan(2 * sentBytes);
  expect(Math.max(...turns)).toBeLessThan(clients * sentBytes * 0.8);
});

test("a connection on which a credential is valid does not wait for those without, even if it did before", async () => {
  const { admit, sessions, sockets } = await serverWithClients();
  const [admittedBefore, admittedAfter] = sessions.slice(-2) as [Http2Session, Http2Session];
  const bytes = kinds["send window updates"] as Buffer;
  const before = new Map(sessions.map((session) => [session, parsedOf(session)]));
  const parsed = (session: Http2Session) => parsedOf(session) - (before.get(session) ?? 0);
  countTime();
  admit(admittedBefore);
  for (const socket of sockets) socket.resume().write(bytes);
  while (parsed(admittedBefore) < bytes.length) await setImmediate();
  while (!sessions.every((session) => parsed(session) > 0)) await setImmediate();
  expect(parsed(admittedAfter)).toBeLessThan(sentBytes / 2);
  admit(admittedAfter);
  while (parsed(admittedAfter) < bytes.length) await setImmediate();
  expect(sum(sessions.slice(0, -2).map(parsed))).toBeLessThan((clients * sentBytes) / 2);
});

/** Sends more and more until the end of the test, as fast as it is taken. */
function flood(socket: net.Socket, bytes: Buffer): void {
  const writeOn = () => {
    while (!socket.destroyed && socket.write(bytes));
  };
  socket.resume().on("drain", writeOn);
  writeOn();
}

test("who sends little does not wait for the turns of those who send a lot, nor do they wait for ever", async () => {
  const { sessions, sockets } = await serverWithClients();
  const [little, ...large] = sockets as [net.Socket, ...net.Socket[]];
  little.setNoDelay();
  const bytes = kinds["send window updates"] as Buffer;
  for (const socket of large) flood(socket, bytes);
  const [session, ...others] = sessions as [Http2Session, ...Http2Session[]];
  const start = new Map(others.map((other) => [other, parsedOf(other)]));
  const areAllParsed = (bytes: number) =>
    others.every((other) => parsedOf(other) - (start.get(other) ?? 0) > bytes);
  while (!areAllParsed(sentBytes / 2)) await setImmediate();
  const waits: number[] = [];
  while (waits.length < 10) {
    const before = parsedOf(session);
    little.write(frame("windowUpdate", 0, 0, Buffer.of(0, 0, 0, 1)));
    let turns = 0;
    for (; parsedOf(session) === before; turns++) await setImmediate();
    waits.push(turns);
  }
  expect(Math.max(...waits)).toBeLessThan(0.5 * clients);
  while (!areAllParsed(2 * sentBytes)) await setImmediate();
});

const most = Buffer.from([0x7f, 0, 0, 0]);
/** With which a client could be sent gigabytes at once. */
const largestWindows = Buffer.concat([
  frame("settings", 0, 0, Buffer.concat([Buffer.of(0, 4), most])),
  frame("windowUpdate", 0, 0, most),
]);

test.for(ways)("a client that takes no answers is read no further $name, until it does", async (how) => {
  const { reported, sessions, sockets } = await serverWithClients({ ...how, answerBytes: 32 << 20 });
  const [session, ...others] = sessions as [Http2Session, ...Http2Session[]];
  const [socket, ...otherSockets] = sockets as [net.Socket, ...net.Socket[]];
  const rounds = async () => {
    for (let round = 0; round < 100; round++) await setImmediate();
  };
  socket.pause().write(Buffer.concat([largestWindows, calls(0, 1)]));
  const { bytesWritten } = session.socket;
  while (session.socket.bytesWritten === bytesWritten) await setImmediate();
  await rounds();
  const before = parsedOf(session);
  const readBefore = reported[0]?.bytesRead;
  socket.write(calls(1, 100));
  for (const other of otherSockets) other.resume().write(calls(0, 100));
  while (!others.every((other) => parsedOf(other) > 100 * frame("headers", 0, 1, callHeaders("/")).length))
    await setImmediate();
  await rounds();
  expect(parsedOf(session)).toBe(before);
  expect(reported[0]?.bytesRead).toBe(readBefore);
  socket.resume();
  while (parsedOf(session) === before) await setImmediate();
});

test.for(
  ways,
)("what a client has sent behind a call whose answer it does not take is not looked at meanwhile $name", async (how) => {
  const { reported, sessions, sockets } = await serverWithClients({ ...how, answerBytes: 32 << 20 });
  const [session] = sessions as [Http2Session];
  const [socket] = sockets as [net.Socket];
  const [serverSocket] = reported as [net.Socket];
  const isPaused = serverSocket.isPaused.bind(serverSocket);
  let looks = 0;
  serverSocket.isPaused = () => {
    // A turn without an end would leave this test no time to fail in.
    if (++looks > 100_000) throw new Error("the connection is looked at again and again");
    return isPaused();
  };
  const before = parsedOf(session);
  const parsed = () => parsedOf(session) - before;
  const bytes = Buffer.concat([largestWindows, calls(0, 1), kinds["send window updates"] as Buffer]);
  const { bytesWritten } = session.socket;
  socket.pause().write(bytes);
  while (session.socket.bytesWritten - bytesWritten < 16_384) await setImmediate();
  const rounds = async () => {
    for (let round = 0; round < 100; round++) await setImmediate();
  };
  await rounds();
  const [parsedThen, looksThen] = [parsed(), looks];
  expect(parsedThen).toBeLessThan(bytes.length);
  await rounds();
  expect(parsed()).toBe(parsedThen);
  expect(looks).toBe(looksThen);
  socket.resume();
  while (parsed() < bytes.length) await setImmediate();
});

test("what waits of a connection when a credential is found valid does not count as waiting for good", async () => {
  const { admit, server } = await serverWithClients();
  const { port } = server.address() as net.AddressInfo;
  const data = frame("data", 0, 1, Buffer.alloc(15_000));
  const bytes = Buffer.concat([preface, opened, data, data, data, data]);
  countTime();
  const isAllParsed = async () => {
    const socket = net.connect({ port, host: "127.0.0.1" }).on("error", () => {});
    socket.resume().write(bytes);
    const [session] = (await once(server, "session")) as [Http2Session];
    while (!session.destroyed && parsedOf(session) < bytes.length) await setImmediate();
    const isLeft = !session.destroyed;
    socket.destroy();
    return isLeft;
  };
  const admitted = (stream: http2.ServerHttp2Stream) => admit(stream.session as Http2Session);
  server.on("stream", admitted);
  // Together, 64 MiB of connections may wait.
  for (let sent = 0; sent < 70 << 20; sent += bytes.length) await isAllParsed();
  server.off("stream", admitted);
  expect(await isAllParsed()).toBe(true);
});

test("what waits of a connection counts with those with a valid credential once it has one, until it was parsed, and is subtracted once", async () => {
  let takesMs = 5;
  let now = performance.now();
  const clock = vi.spyOn(performance, "now").mockImplementation(() => {
    now += takesMs;
    return now;
  });
  onTestFinished(() => void clock.mockRestore());
  const { admit, reported, sessions } = await serverWithClients();
  const [large, small, more, later, last] = sessions as [
    Http2Session,
    Http2Session,
    Http2Session,
    Http2Session,
    Http2Session,
  ];
  const ofUnknownType = Buffer.alloc(9 + 16_384);
  ofUnknownType.writeUIntBE(16_384, 0, 3);
  ofUnknownType[3] = 0xfe;
  const bytes = Buffer.alloc(45 << 20, ofUnknownType);
  const sent = new Map<Http2Session, number>();
  /** As Node reports what it has read ahead. Returns whether the connection is left. */
  const receive = (session: Http2Session, length: number) => {
    const socket = reported[sessions.indexOf(session)] as net.Socket;
    socket.emit("data", bytes.subarray(sent.get(session) ?? 0, (sent.get(session) ?? 0) + length));
    sent.set(session, (sent.get(session) ?? 0) + length);
    return !socket.destroyed;
  };
  for (const session of [more, later, last]) admit(session);
  // The turn's time is over then, so the other is one of those that have sent little.
  expect(receive(large, 15 << 20)).toBe(true);
  for (const length of [1_000, 25 << 20]) expect(receive(small, length)).toBe(true);
  for (const session of [large, small]) admit(session);
  // What arrives then counts as well.
  expect(receive(large, 10 << 20)).toBe(true);
  const closed = once(more, "close");
  expect(receive(more, 20 << 20)).toBe(false);
  await closed;
  // All is parsed by those whose turn comes first.
  takesMs = 0;
  while (![large, small].every((session) => parsedOf(session) >= (sent.get(session) ?? 0)))
    await setImmediate();
  takesMs = 5;
  // Of these, nothing waits when they close.
  for (const session of [large, small]) {
    const isClosed = once(session, "close");
    reported[sessions.indexOf(session)]?.destroy();
    await isClosed;
  }
  expect(receive(later, 45 << 20)).toBe(true);
  expect(receive(last, 25 << 20)).toBe(false);
});

test("no more is read of a connection of which something waits for its turn", async () => {
  const { reported, sessions, sockets } = await serverWithClients();
  countTime();
  for (const socket of sockets) flood(socket, kinds["send window updates"] as Buffer);
  const isRead = () => sessions.every((session) => parsedOf(session) > 3 * sentBytes);
  let mostWaiting = 0;
  while (!isRead()) {
    await setImmediate();
    for (const [index, session] of sessions.entries())
      mostWaiting = Math.max(mostWaiting, (reported[index]?.bytesRead ?? 0) - parsedOf(session));
  }
  // Node reads so much at once.
  expect(mostWaiting).toBeLessThanOrEqual(64 * 1024 + preface.length);
});

test.for(ways)("a client's end waits behind what it has sent $name", async (how) => {
  const { server, sessions, sockets } = await serverWithClients(how);
  const [session] = sessions as [Http2Session];
  const [socket] = sockets as [net.Socket];
  let opened = 0;
  server.on("stream", () => {
    opened += 1;
  });
  countTime();
  socket.resume().end(calls(0, 500));
  await once(session, "close");
  expect(opened).toBe(500);
});

test("what arrives in many small parts while it waits, as TLS records do, is not copied for each", async () => {
  const { reported, server, sockets } = await serverWithClients();
  const streamIds: (number | undefined)[] = [];
  server.on("stream", ({ id }) => streamIds.push(id));
  const [serverSocket] = reported as [net.Socket];
  sockets[0]?.resume();
  const bytes = calls(0, 500);
  countTime();
  const concat = vi.spyOn(Buffer, "concat");
  // Node reports all that have arrived without a pause.
  for (let at = 0; at < bytes.length; at += 10) serverSocket.emit("data", bytes.subarray(at, at + 10));
  const copied = sum(concat.mock.results.map(({ value }) => (value as Buffer).length));
  concat.mockRestore();
  expect(copied).toBeLessThan(100 * bytes.length);
  while (streamIds.length < 500) await setImmediate();
  expect(streamIds).toEqual(Array.from({ length: 500 }, (_, index) => 2 * index + 1));
});

test.for(ways)("calls that wait when a client's end arrives are answered $name", async (how) => {
  const { server, sockets } = await serverWithClients(how);
  server.on("stream", (stream) => stream.respond({ ":status": 204 }, { endStream: true }));
  const [socket] = sockets as [net.Socket];
  countTime();
  let received = 0;
  socket.on("data", ({ length }: Buffer) => {
    received += length;
  });
  socket.resume().end(calls(0, 500));
  await once(socket, "close");
  // An answer takes ten bytes. The session ends with the end, and what it has yet to send then is dropped.
  expect(received).toBeGreaterThan(250 * 10);
});

test.for(
  ways,
)("an answer that comes while a client takes nothing, not even the end that answers its own, is dropped $name", async (how) => {
  const { reported, sessions, sockets } = await serverWithClients(how);
  const [session] = sessions as [Http2Session];
  const [socket] = sockets as [net.Socket];
  const [serverSocket] = reported as [net.Socket];
  const ending = Promise.withResolvers<() => void>();
  // As if there were no room for it before the client takes what was sent.
  serverSocket._final = (done) => ending.resolve(done);
  socket.resume().end(opened);
  const [stream] = (await once(session, "stream")) as [http2.ServerHttp2Stream];
  const done = await ending.promise;
  stream.respond();
  stream.end("too late");
  for (let round = 0; round < 10; round++) await setImmediate();
  expect(session.closed).toBe(false);
  done();
  await once(session, "close");
});

test.for(ways)("a client may end its side $name while it is being answered", async (how) => {
  const { server, sessions, sockets } = await serverWithClients(how);
  server.on("stream", async (stream) => {
    await setImmediate();
    stream.close(http2.constants.NGHTTP2_CANCEL);
  });
  const closed = sessions.map((session) => once(session, "close"));
  for (const socket of sockets) socket.resume().end(calls(0, 10));
  await Promise.all(closed);
});

test("of sessions that have ended with an error, and of their connections, nothing is kept", async () => {
  const { reported, server, sessions, sockets } = await serverWithClients();
  keepSessions().watch(server as Http2Server);
  const kept: WeakRef<Http2Session | net.Socket>[] = [];
  for (const event of ["session", "connection"])
    server.on(event, (ended: Http2Session | net.Socket) => kept.push(new WeakRef(ended)));
  const { port } = server.address() as net.AddressInfo;
  const ofNoStream = frame("data", 0, 0, Buffer.alloc(10));
  for (const _ of sockets) {
    const socket = net.connect({ port, host: "127.0.0.1" }).resume();
    socket.on("error", () => {}).write(preface);
    await once(socket, "data");
    socket.write(ofNoStream);
    await once(socket, "close");
    // The client has left before the session has sent what it has to say.
    const leaving = net.connect({ port, host: "127.0.0.1" }).resume();
    leaving.on("error", () => {}).end(Buffer.concat([preface, ofNoStream]));
    await once(leaving, "close");
  }
  sessions.length = 0;
  reported.length = 0;
  v8.setFlagsFromString("--expose-gc");
  const collectGarbage = vm.runInNewContext("gc") as () => void;
  for (let round = 0; round < 10; round++) {
    await setImmediate();
    collectGarbage();
  }
  expect(kept).toHaveLength(clients * 4);
  expect(kept.filter((ended) => ended.deref() !== undefined)).toHaveLength(0);
});

test("a stream tells the address of its client", async () => {
  const { sessions, sockets } = await serverWithClients();
  expect(
    sessions.map(({ socket: { remoteAddress, remotePort } }) => ({ remoteAddress, remotePort })),
  ).toEqual(
    sockets.map(({ localAddress, localPort }) => ({ remoteAddress: localAddress, remotePort: localPort })),
  );
});

test("a connection on which the client negotiates TLS anew is closed", async () => {
  const { sessions, sockets } = await serverWithClients({ overTls: true, maxVersion: "TLSv1.2" });
  const [session] = sessions as [Http2Session];
  const [socket] = sockets as [tls.TLSSocket];
  const closed = new Promise((resolve) => session.on("close", () => resolve("closed")));
  const negotiated = new Promise((resolve) => socket.resume().renegotiate({}, () => resolve("negotiated")));
  expect(await Promise.race([closed, negotiated])).toBe("closed");
});

test("what a session writes is sent at once, and when its connection was closed before, it ends", async () => {
  const { server, sessions } = await serverWithClients();
  const socket = new net.Socket();
  const setNoDelay = vi.spyOn(socket, "setNoDelay");
  server.emit("connection", socket);
  expect(setNoDelay).toHaveBeenCalledWith();
  socket.destroy();
  await once(sessions.at(-1) as Http2Session, "close");
});
