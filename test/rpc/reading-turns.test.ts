/** How much of what clients send is read in a turn of the event loop. */

import { EventEmitter, once } from "node:events";
import { readFileSync } from "node:fs";
import http2, { type Http2Server, type Http2Session } from "node:http2";
import net from "node:net";
import { setImmediate } from "node:timers/promises";
import tls from "node:tls";
import { expect, onTestFinished, test, vi } from "vitest";
import { readSessionsInTurns } from "../../src/rpc/reading-turns.ts";
import { callHeaders, endHeaders, endStream, frame, preface } from "../security/http2-frames.ts";
import { certificates } from "./certificates.ts";

const [clients, streams, frames] = [20, 400, 4_000];

/** A server with so many clients, and the sessions of what it reads, turn by turn of the event loop. */
async function serverWithClients({ overTls = false, answerBytes = 0, answered = 1 } = {}) {
  const { watch, admit } = readSessionsInTurns();
  const sessions: Http2Session[] = [];
  const turns: Http2Session[][] = [];
  const { cert, key } = certificates.server;
  const server = overTls
    ? http2.createSecureServer({ cert: readFileSync(cert), key: readFileSync(key) })
    : http2.createServer();
  watch(server as Http2Server);
  const read = (session: Http2Session | undefined) => session && turns.at(-1)?.push(session);
  server.on("session", (session) => sessions.push(session));
  server.on("stream", (stream) => {
    read(stream.session);
    stream.on("error", () => {}).on("data", () => read(stream.session));
    const isAnswered = sessions.slice(0, answered).some((session) => session === stream.session);
    if (answerBytes === 0 || !isAnswered || (answered > 1 && stream.id !== 1)) return;
    stream.end(Buffer.alloc(answerBytes));
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
    const socket = overTls ? tls.connect({ socket: plain, ca, ALPNProtocols: ["h2"] }) : plain;
    sockets.push(socket.on("error", () => {}));
    await once(socket, overTls ? "secureConnect" : "connect");
    socket.write(preface);
    while (sessions.length < sockets.length) await setImmediate();
    // The server's settings.
    await once(socket, "data");
  }
  return {
    admit,
    sessions,
    sockets,
    turns,
    /** All clients send this at once. Resolves when so much of it was read. */
    async sendAll(bytes: Buffer, count: number) {
      for (const socket of sockets) socket.write(bytes);
      while (turns.reduce((sum, { length }) => sum + length, 0) < count) {
        turns.push([]);
        await setImmediate();
      }
    },
  };
}

const calls = (from: number, to: number) =>
  Buffer.concat(
    Array.from({ length: to - from }, (_, index) =>
      frame("headers", endHeaders | endStream, 2 * (from + index) + 1, callHeaders("/")),
    ),
  );
const opened = calls(0, streams);
const inBytes = Buffer.concat([
  frame("headers", endHeaders, 1, callHeaders("/")),
  ...Array.from({ length: frames }, () => frame("data", 0, 1, Buffer.of(0))),
]);
const longest = (turns: readonly (readonly unknown[])[]) => Math.max(...turns.map(({ length }) => length));

const most = Buffer.from([0x7f, 0xff, 0, 0]);
/** With which a client could be sent gigabytes at once. */
const largestWindows = Buffer.concat([
  frame("settings", 0, 0, Buffer.concat([Buffer.of(0, 4), most])),
  frame("windowUpdate", 0, 0, most),
]);
/** Whether a client is yet to take what the server has written, which then does not read it. */
const isWriting = ({ socket }: Http2Session) =>
  (socket as unknown as { readonly _handle: { readonly writeQueueSize: number } })._handle.writeQueueSize > 0;

const ways = [
  { name: "in plain text", overTls: false },
  { name: "over TLS", overTls: true },
];

test.for(
  ways,
)("of streams that many connections open at once $name, those of about one are read in a turn", async (how) => {
  const { turns, sendAll } = await serverWithClients(how);
  await sendAll(opened, clients * streams);
  expect(longest(turns)).toBeLessThan(2 * streams);
});

test("of frames of a byte that many connections send at once, those of a few are read in a turn", async () => {
  const { turns, sendAll } = await serverWithClients();
  await sendAll(inBytes, clients * (frames + 1));
  expect(longest(turns)).toBeLessThan(5 * frames);
});

test("so it is on connections with a valid credential, of which more is read", async () => {
  const { admit, sessions, turns, sendAll } = await serverWithClients();
  for (const session of sessions) admit(session);
  await sendAll(opened, clients * streams);
  expect(longest(turns)).toBeLessThan(3 * streams);
});

test("a connection on which a credential is valid does not wait for those without, even if it did before", async () => {
  const { admit, sessions, turns, sendAll } = await serverWithClients();
  const [before, after] = sessions.slice(-2) as [Http2Session, Http2Session];
  const isRead = (session: Http2Session) => turns.some((turn) => turn.includes(session));
  const strangers = () => sessions.slice(0, -2).filter(isRead).length;
  admit(before);
  const all = sendAll(opened, clients * streams);
  while (!isRead(before)) await setImmediate();
  expect(strangers()).toBeLessThan(3);
  admit(after);
  while (!isRead(after)) await setImmediate();
  expect(strangers()).toBeLessThan(6);
  await all;
});

/** Connections of which it is the test that says what is sent. */
function givenConnections() {
  const server = new EventEmitter();
  const { watch, admit } = readSessionsInTurns();
  watch(server as Http2Server);
  /** In the order in which their reading was started, as Node reads them. */
  const started = new Set<EventEmitter>();
  const connect = () => {
    const session = new EventEmitter();
    const readStart = () => void started.add(session);
    const handle = {
      reading: true,
      writeQueueSize: 0,
      readStop: () => void started.delete(session),
    };
    Object.assign(session, { socket: { _handle: Object.setPrototypeOf(handle, { readStart }) } });
    readStart();
    server.emit("session", session);
    return session;
  };
  const openStreams = (session: EventEmitter) => {
    for (let opened = 0; opened < streams; opened++) server.emit("stream", { session, push: () => true });
  };
  return { server, admit, started, connect, openStreams };
}

test("a connection whose turn comes right after that of one that always sends too much is read, too", async () => {
  const { started, connect, openStreams } = givenConnections();
  const sessions = [connect(), connect(), connect(), connect()] as const;
  const [busy, , alsoBusy, next] = sessions;
  // All of them are among those that send a lot.
  for (const session of sessions) {
    openStreams(session);
    while (started.size < sessions.length) await setImmediate();
  }
  let readTimes = 0;
  for (let turn = 0; turn < 40; turn++) {
    for (const session of started) {
      if (session === next) readTimes += 1;
      if (session === busy || session === alsoBusy) openStreams(session);
    }
    await setImmediate();
  }
  expect(readTimes).toBeGreaterThan(5);
});

test("a connection that waits because it sends a lot itself is read at once when a credential on it is valid", async () => {
  const { admit, started, connect, openStreams } = givenConnections();
  const sessions = [connect(), connect(), connect()];
  for (let turn = 0; turn < 10; turn++) {
    for (const session of started) openStreams(session);
    await setImmediate();
  }
  const waiting = sessions.filter((session) => !started.has(session));
  expect(waiting.length).toBeGreaterThan(0);
  for (const session of waiting) admit(session as unknown as Http2Session);
  expect(waiting.filter((session) => !started.has(session))).toEqual([]);
});

test("a connection that goes on sending a lot is kept apart from others, however long; one that stops is read with them again", async () => {
  let now = 0;
  const clock = vi.spyOn(performance, "now").mockImplementation(() => now);
  onTestFinished(() => clock.mockRestore());
  const { server, started, connect, openStreams } = givenConnections();
  const [busy, calming, quiet] = [connect(), connect(), connect()];
  const turn = async () => {
    await setImmediate();
    now += 1_000;
  };
  for (const session of [busy, calming]) {
    openStreams(session);
    await turn();
  }
  for (let seconds = 0; seconds < 20; seconds++) {
    if (started.has(calming)) server.emit("stream", { session: calming, push: () => true });
    if (started.has(busy)) openStreams(busy);
    expect(started.has(quiet)).toBe(true);
    await turn();
  }
  openStreams(busy);
  expect([busy, calming, quiet].map((session) => started.has(session))).toEqual([false, true, true]);
});

test("however many wait because one sent too much, all are read again within a few turns", async () => {
  const { started, connect, openStreams } = givenConnections();
  const sessions = Array.from({ length: 500 }, connect);
  openStreams(connect());
  expect(started.size).toBe(0);
  for (let turn = 0; turn < 10; turn++) await setImmediate();
  expect(sessions.filter((session) => !started.has(session))).toEqual([]);
});

test("a connection that has closed before its session begins is no fault when others send a lot", async () => {
  const { server, connect, openStreams, started } = givenConnections();
  server.emit("session", Object.assign(new EventEmitter(), { socket: { _handle: null } }));
  const session = connect();
  openStreams(session);
  expect(started.has(session)).toBe(false);
  await setImmediate();
  expect(started.has(session)).toBe(true);
});

test.for(
  ways,
)("a client that takes no answers is read no further $name, however many turns there are", async (how) => {
  const { sessions, sockets, turns } = await serverWithClients({ ...how, answerBytes: 1 << 20 });
  const [session] = sessions as [Http2Session];
  const [socket, ...others] = sockets as [net.Socket, ...net.Socket[]];
  const callsRead = () => turns.flat().filter((read) => read === session).length;
  const rounds = async () => {
    for (let round = 0; round < 100; round++) await setImmediate();
  };
  socket.pause();
  socket.write(largestWindows);
  turns.push([]);
  socket.write(calls(0, 20));
  while (!isWriting(session)) await setImmediate();
  socket.write(calls(20, 120));
  await rounds();
  const before = callsRead();
  expect(before).toBeLessThan(21);
  for (const other of others) other.write(opened);
  await rounds();
  expect(callsRead()).toBe(before);
  socket.resume();
  while (callsRead() === before) await setImmediate();
});

test.for(
  ways,
)("of clients that take their answers at once $name, no more are read in a turn than of others", async (how) => {
  const answered = 16;
  const { sessions, sockets, turns } = await serverWithClients({ ...how, answered, answerBytes: 8 << 20 });
  const slow = sockets.slice(0, answered);
  for (const socket of slow) socket.pause().write(Buffer.concat([largestWindows, calls(0, 1)]));
  while (!sessions.slice(0, answered).every(isWriting)) await setImmediate();
  const more = calls(1, streams);
  for (const socket of slow) socket.write(more);
  for (let round = 0; round < 100; round++) await setImmediate();
  // Others send a lot: everybody waits for their turns.
  for (const socket of sockets.slice(answered)) socket.resume().write(opened);
  const takeTurns = async (count: number) => {
    while (turns.reduce((sum, { length }) => sum + length, 0) < count) {
      if (turns.at(-1)?.length !== 0) turns.push([]);
      await setImmediate();
    }
  };
  await takeTurns(streams);
  for (const socket of slow) socket.resume();
  await takeTurns(clients * streams - answered);
  expect(longest(turns)).toBeLessThan(2 * streams);
});
