import { once } from "node:events";
import http2, { type Http2ServerRequest, type Http2ServerResponse, type Http2Session } from "node:http2";
import net from "node:net";
import { setImmediate } from "node:timers/promises";
import { expect, onTestFinished, test, vi } from "vitest";
import { readSessionsInTurns } from "../../src/rpc/session-turns.ts";
import { keepSessions } from "../../src/rpc/sessions.ts";
import { scheduleStreams } from "../../src/rpc/stream-scheduling.ts";
import { countTime } from "../harness/reading.ts";
import { callHeaders, endHeaders, frame, preface } from "../security/http2-frames.ts";
import { plainClient } from "./plain-client.ts";

/** Error codes of a reset (RFC 9113, 7). */
const [protocolError, refusedStream, cancel] = [1, 7, 8];
const enhanceYourCalm = 11;

test.for([
  { name: "cancelled", reason: cancel },
  { name: "reset as a protocol error", reason: protocolError },
])("a stream that is $name before its turn is skipped, and a client that does so repeatedly is disconnected", async ({
  reason,
}) => {
  countTime(0);
  // Node's own limit is a thousand.
  const server = http2.createServer();
  readSessionsInTurns().watch(server);
  keepSessions().watch(server);
  scheduleStreams(server, { isKnown: () => false, noteRefused: () => {} });
  let taken = 0;
  server.on("request", () => {
    taken += 1;
  });
  server.listen(0, "127.0.0.1");
  onTestFinished(() => void server.close());
  await once(server, "listening");
  const { port } = server.address() as net.AddressInfo;
  const client = net.connect({ port, host: "127.0.0.1" });
  const received: Buffer[] = [];
  client.on("data", (bytes: Buffer) => received.push(bytes)).on("error", () => {});
  const calls = Array.from({ length: 300 }, (_, index) => [
    frame("headers", endHeaders, 2 * index + 1, callHeaders("/")),
    frame("rstStream", 0, 2 * index + 1, Buffer.of(0, 0, 0, reason)),
  ]);
  client.write(Buffer.concat([preface, ...calls.flat()]));
  await once(client, "close");
  // One whose reset arrives later than what opened it may have had its turn.
  expect(taken).toBeLessThan(10);
  expect(goAwayCodeIn(Buffer.concat(received))).toBe(enhanceYourCalm);
});

/** The error code of the last GOAWAY. */
function goAwayCodeIn(bytes: Buffer): number | undefined {
  let reason: number | undefined;
  for (let at = 0; at + 17 <= bytes.length; at += 9 + bytes.readUIntBE(at, 3)) {
    if (bytes[at + 3] === 7) reason = bytes.readUInt32BE(at + 13);
  }
  return reason;
}

/** A server that gets streams as events, without connections, and the paths of the requests that it has started and refused. */
function eventServer(known: readonly object[] = []) {
  const server = http2.createServer();
  const noteRefused = vi.fn();
  scheduleStreams(server, { isKnown: (session) => known.includes(session), noteRefused });
  const taken: string[] = [];
  server.on("request", ({ url }) => taken.push(url));
  const refused: string[] = [];
  const open = (session: object, url: string, closed = false) => {
    const close = (code: number) => void refused.push(code === refusedStream ? url : `${url} with ${code}`);
    const request = { url, stream: { session, closed, destroyed: false, close } };
    server.emit("request", request as unknown as Http2ServerRequest, {} as Http2ServerResponse);
  };
  return { taken, refused, noteRefused, open };
}

const connection = () => ({ destroyed: false }) as unknown as Http2Session;

test("a client that cancels a few streams at a time before their turn is also disconnected beyond a limit", async () => {
  const { taken, open } = eventServer();
  const destroy = vi.fn();
  const resetting = { destroyed: false, destroy };
  const takeBack = async (count: number) => {
    for (let opened = 0; opened < count; opened++) open(resetting, "taken back", true);
    await setImmediate();
  };
  for (let few = 0; few < 4; few++) await takeBack(50);
  expect(destroy).not.toHaveBeenCalled();
  for (let few = 0; few < 4; few++) await takeBack(50);
  expect(destroy).toHaveBeenCalledWith(expect.any(Error), enhanceYourCalm);
  expect(taken).toEqual([]);
});

test("a client that cancels streams before their turn now and then stays connected", async () => {
  vi.useFakeTimers({ toFake: ["performance"] });
  onTestFinished(() => void vi.useRealTimers());
  const { open } = eventServer();
  const destroy = vi.fn();
  const resetting = { destroyed: false, destroy };
  for (let round = 0; round < 4; round++) {
    for (let opened = 0; opened < 200; opened++) open(resetting, "taken back", true);
    await setImmediate();
    vi.advanceTimersByTime(10_000);
  }
  expect(destroy).not.toHaveBeenCalled();
});

test("a client that has cancelled next to nothing for an hour may cancel no more at once than any other", async () => {
  vi.useFakeTimers({ toFake: ["performance"] });
  onTestFinished(() => void vi.useRealTimers());
  const { open } = eventServer();
  const resetting = { destroyed: false, destroy: vi.fn() };
  for (const count of [1, 250]) {
    for (let opened = 0; opened < count; opened++) open(resetting, "taken back", true);
    await setImmediate();
    vi.advanceTimersByTime(3_600_000);
  }
  expect(resetting.destroy).toHaveBeenCalledWith(expect.any(Error), enhanceYourCalm);
});

test("at most 5000 streams wait, not counting those that were cancelled or whose connection has ended", async () => {
  const { taken, refused, noteRefused, open } = eventServer();
  const openMany = (session: object, url: string) => {
    for (let opened = 0; opened < 5_000; opened++) open(session, url);
  };
  for (let client = 0; client < 50; client++) {
    const cancelling = connection();
    for (let opened = 0; opened < 100; opened++) open(cancelling, "cancelled", true);
  }
  const ended = { destroyed: false };
  openMany(ended, "ended");
  expect(refused).toEqual([]);
  open(ended, "one too many");
  expect(refused).toEqual(["one too many"]);
  expect(noteRefused.mock.calls).toEqual([["waiting", "in_all"]]);
  ended.destroyed = true;
  await setImmediate();
  expect(taken).toEqual([]);
  openMany(ended, "ended before");
  openMany(connection(), "later");
  expect(refused).toEqual(["one too many"]);
});

test("streams that were started wait no longer: a client may open more than 5000 over time", async () => {
  const { taken, refused, open } = eventServer();
  const client = connection();
  for (let opened = 1_000; opened <= 7_000; opened += 1_000) {
    for (let count = 0; count < 1_000; count++) open(client, "call");
    expect(refused).toEqual([]);
    while (taken.length < opened) await setImmediate();
  }
});

test("the first call of a connection waits its turn, however many streams of others wait; up to a thousand do", async () => {
  const { taken, refused, open } = eventServer();
  const busy = connection();
  for (let opened = 0; opened < 5_010; opened++) open(busy, "busy");
  expect(refused).toHaveLength(10);
  const first = connection();
  open(first, "first");
  open(first, "second");
  expect(refused.slice(10)).toEqual(["second"]);
  for (let opened = 0; opened < 1_010; opened++) open(connection(), "further");
  expect(refused.slice(11)).toEqual(Array(11).fill("further"));
  await setImmediate();
  expect(taken).toContain("first");
});

test("a call without a body whose end arrives before its turn is read to its end", async () => {
  const server = http2.createServer();
  scheduleStreams(server, { isKnown: () => false, noteRefused: () => {} });
  server.on("request", (request, response) => {
    request.resume().on("end", () => response.end("received"));
  });
  const client = await plainClient(server);
  const call = client.request({ ":method": "POST" });
  call.end();
  const received = await Array.fromAsync(call.setEncoding("utf8"));
  expect(received.join("")).toBe("received");
});

test("connections take turns, however many streams one of them opens, and the event loop runs in between", async () => {
  const { taken, open } = eventServer();
  const [greedy, modest] = [connection(), connection()];
  for (let count = 0; count < 100; count++) open(greedy, "greedy");
  open(modest, "modest");
  await setImmediate();
  expect(taken.slice(0, 3)).toEqual(["greedy", "modest", "greedy"]);
  expect(taken.length).toBeLessThan(100);
  while (taken.length < 101) await setImmediate();
  expect(taken.filter((name) => name === "greedy")).toHaveLength(100);
});

test("streams that were cancelled before their turn hold up no other", async () => {
  const { taken, open } = eventServer();
  for (let client = 0; client < 100; client++) open(connection(), "cancelled", true);
  open(connection(), "other");
  await setImmediate();
  expect(taken).toEqual(["other"]);
});

const nextTick = () => new Promise<void>((resolve) => process.nextTick(resolve));

test("a connection on which a credential was valid does not wait for others", async () => {
  const known = [connection(), connection()];
  const { taken, open } = eventServer(known);
  for (let count = 0; count < 100; count++) open(connection(), "unknown");
  for (const each of known) for (let count = 0; count < 60; count++) open(each, "known");
  open(known[0] as object, "cancelled", true);
  await nextTick();
  expect(taken).toEqual(Array.from({ length: 120 }, () => "known"));
});

test("of hundreds of streams that such a connection opens at once, 64 are started in a turn of the event loop, in their order", async () => {
  const [busy, other] = [connection(), connection()];
  const { taken, open } = eventServer([busy, other]);
  const cancelled = 150;
  for (let count = 0; count < 200; count++) open(busy, `busy ${count}`, count === cancelled);
  open(other, "other");
  await nextTick();
  expect(taken).toHaveLength(65);
  expect(taken).toContain("other");
  await setImmediate();
  // Those in front of it have waited for longer.
  open(busy, "busy 200");
  await nextTick();
  expect(taken).toHaveLength(65 + 64);
  while (!taken.includes("busy 200")) await setImmediate();
  const all = Array.from({ length: 201 }, (_, count) => `busy ${count}`);
  expect(taken.filter((name) => name !== "other")).toEqual(all.toSpliced(cancelled, 1));
});

test("after its turns such a connection waits no longer than a new one, and the event loop rests", async () => {
  const busy = connection();
  const { taken, open } = eventServer([busy]);
  for (let count = 0; count < 65; count++) open(busy, "busy");
  while (taken.length < 65) await setImmediate();
  await vi.waitUntil(() => !process.getActiveResourcesInfo().includes("Immediate"), { timeout: 45_000 });
  open(busy, "later");
  await nextTick();
  expect(taken).toContain("later");
});
