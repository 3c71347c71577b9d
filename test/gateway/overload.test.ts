/**
 * Calls that cannot be served are refused, and a refused connection is not read before its Retry-After has passed. The whole
 * gateway is tested in test/service/overload.test.ts.
 */

import { once } from "node:events";
import net, { type AddressInfo } from "node:net";
import Fastify from "fastify";
import { expect, onTestFinished, test, vi } from "vitest";
import { createOverload } from "../../src/gateway/overload.ts";
import { resumeReading } from "../../src/gateway/paused-sockets.ts";

/** A server that answers 204 or refuses. Each value of Retry-After is given to `perSecond` connections. */
async function startServer({ perSecond = 2 } = {}) {
  const state = { isLate: true, isOverloaded: false, refusedWaiting: 0, isStopped: false, isLost: false };
  const overload = createOverload(
    { isOverloaded: () => state.isOverloaded },
    {
      isLate: () => state.isLate,
      readInTurn: resumeReading,
      refusedWaiting: () => state.refusedWaiting,
      stop: () => {
        state.isStopped = true;
      },
    },
    perSecond,
  );
  const server = Fastify();
  server.addHook("onRequest", ({ raw: { socket } }, reply, done) => {
    if (!overload.sheds("create", reply)) done();
    else if (state.isLost) socket.destroy();
  });
  server.all("/", async (_request, reply) => reply.code(204).send());
  await server.listen({ host: "127.0.0.1", port: 0 });
  onTestFinished(() => server.close());
  const { port } = server.server.address() as AddressInfo;

  /** `answers` are the statuses so far, each with its Retry-After or 0. */
  async function connect() {
    const socket = net.connect(port, "127.0.0.1");
    onTestFinished(() => void socket.destroy());
    await once(socket, "connect");
    let received = "";
    let isClosed = false;
    socket.setEncoding("latin1");
    socket.on("data", (text) => {
      received += text;
    });
    const closed = new Promise<void>((resolve) => {
      socket.on("end", () => {
        isClosed = true;
        resolve();
      });
    });
    const answers = () =>
      [...received.matchAll(/HTTP\/1\.1 (\d{3}) .*?\r\n\r\n/gs)].map(([head, status]) => [
        Number(status),
        Number(/^retry-after: (\d+)/m.exec(head)?.[1] ?? 0),
      ]);
    /** Does not poll: vitest's polls move fake timers. */
    async function answered(count: number) {
      while (answers().length < count) await once(socket, "data");
    }
    return {
      answers,
      answered,
      closed,
      isClosed: () => isClosed,
      async ask(request = get, count = 1) {
        const before = answers().length;
        socket.write(request);
        await answered(before + count);
        return answers().slice(before);
      },
      send: (request: string) => socket.write(request),
    };
  }
  return { state, overload, connect };
}

const get = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
const post = "POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}";
const closing = "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

test.for([
  { name: "turns are late", isLate: true, isOverloaded: false, status: 503 },
  { name: "too much waits for the database", isLate: false, isOverloaded: true, status: 503 },
  { name: "neither is so", isLate: false, isOverloaded: false, status: 204 },
])("if $name: $status", async ({ isLate, isOverloaded, status }) => {
  const { state, connect } = await startServer();
  Object.assign(state, { isLate, isOverloaded });
  const client = await connect();
  expect(await client.ask()).toEqual([[status, status === 503 ? 1 : 0]]);
});

test("once turns have been late for a while, at most one call in four is refused for that", async () => {
  const { state, connect } = await startServer({ perSecond: 1_000 });
  // What was served before does not allow for more.
  state.isLate = false;
  await (await connect()).ask(get.repeat(300), 300);
  state.isLate = true;
  const statuses: number[] = [];
  const ask = async (count: number) => {
    const answers = await Promise.all(
      Array.from({ length: count }, async () => (await connect()).ask(closing)),
    );
    statuses.push(...answers.flat().map(([status = 0]) => status));
  };
  for (let round = 0; round < 10; round++) await ask(50);
  expect(statuses.filter((status) => status === 503)).toHaveLength(375);
  expect(statuses.slice(0, 300)).toEqual(new Array(300).fill(503));
  state.isOverloaded = true;
  statuses.length = 0;
  await ask(10);
  expect(statuses).toEqual(new Array(10).fill(503));
  // Those were not refused for late turns, of which later ones may be refused all the same.
  Object.assign(state, { isOverloaded: false, isLate: false });
  statuses.length = 0;
  await ask(3);
  state.isLate = true;
  await ask(1);
  expect(statuses).toEqual([204, 204, 204, 503]);
});

test.for([
  { name: "one request", request: get, count: 1 },
  { name: "one request with a body", request: post, count: 1 },
  { name: "two requests at once", request: get + get, count: 2 },
  { name: "three requests with bodies at once", request: post + post + post, count: 3 },
])("a connection that was refused for $name is read again a second later", async ({ request, count }) => {
  const { state, connect } = await startServer({ perSecond: 1_000 });
  const client = await connect();
  const before = performance.now();
  expect(await client.ask(request, count)).toEqual(new Array(count).fill([503, 1]));
  state.isLate = false;
  expect(await client.ask()).toEqual([[204, 0]]);
  expect(performance.now() - before).toBeGreaterThan(990);
});

test("a connection that is refused again is read again, too", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout"] });
  onTestFinished(() => void vi.useRealTimers());
  const { state, connect } = await startServer({ perSecond: 1_000 });
  const client = await connect();
  for (let refusal = 0; refusal < 2; refusal++) {
    expect(await client.ask()).toEqual([[503, 1]]);
    vi.advanceTimersByTime(1_000);
  }
  state.isLate = false;
  expect(await client.ask()).toEqual([[204, 0]]);
});

test("a connection whose second request is complete only after the pause is read on", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout"] });
  onTestFinished(() => void vi.useRealTimers());
  const { state, connect } = await startServer({ perSecond: 1_000 });
  const client = await connect();
  const refused = [503, 1];
  expect(await client.ask(get + post.slice(0, -2), 2)).toEqual([refused, refused]);
  vi.advanceTimersByTime(1_000);
  state.isLate = false;
  expect(await client.ask(post.slice(-2) + get)).toEqual([[204, 0]]);
  expect(await client.ask()).toEqual([[204, 0]]);
});

/** Refuses so many that the next one gets eight seconds. */
async function tellMany({ connect }: Awaited<ReturnType<typeof startServer>>) {
  for (let count = 0; count < 7; count++) await (await connect()).ask();
}

test("the pause counts from the refusal, however late the request's body arrives", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout"] });
  onTestFinished(() => void vi.useRealTimers());
  const server = await startServer({ perSecond: 1 });
  await tellMany(server);
  const client = await server.connect();
  expect(await client.ask(post.slice(0, -2))).toEqual([[503, 8]]);
  const later = performance.now() + 8_000;
  const clock = vi.spyOn(performance, "now").mockReturnValue(later);
  onTestFinished(() => clock.mockRestore());
  const timers = vi.getTimerCount();
  client.send(post.slice(-2));
  while (vi.getTimerCount() === timers) await new Promise(setImmediate);
  // Only a pause that is over already.
  vi.advanceTimersByTime(0);
  await client.ask();
});

test("Retry-After grows with the number of paused connections up to eight seconds; then they are closed", async () => {
  // On a slow machine the first pauses would be over before the last connection is refused.
  vi.useFakeTimers({ toFake: ["setTimeout"] });
  onTestFinished(() => void vi.useRealTimers());
  const { connect } = await startServer();
  const delays = [];
  for (let count = 0; count < 18; count++) {
    const client = await connect();
    const [[, seconds] = []] = await client.ask();
    delays.push(seconds);
    if (count >= 16) await client.closed;
    else expect(client.isClosed()).toBe(false);
  }
  expect(delays).toEqual([1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 8, 8]);
});

test("connections that wait for their turn after their Retry-After are among the unread, which are never more than so many", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout"] });
  onTestFinished(() => void vi.useRealTimers());
  const { state, connect } = await startServer({ perSecond: 100 });
  state.refusedWaiting = 798;
  const refuse = async () => {
    const client = await connect();
    expect(await client.ask()).toHaveLength(1);
    return client;
  };
  const [one, other, tooMany] = [await refuse(), await refuse(), await refuse()];
  await tooMany.closed;
  expect([one, other, tooMany].map(({ answers }) => answers())).toEqual([[[503, 1]], [[503, 1]], [[503, 8]]]);
  expect([one, other].map(({ isClosed }) => isClosed())).toEqual([false, false]);
  state.refusedWaiting = 797;
  expect((await refuse()).answers()).toEqual([[503, 1]]);
});

test("connections that close with their answer, and requests that never end, do not count as paused", async () => {
  const { connect } = await startServer();
  for (let count = 0; count < 5; count++) {
    expect(await (await connect()).ask(closing)).toEqual([[503, 1]]);
    expect(await (await connect()).ask(post.slice(0, -2))).toEqual([[503, 1]]);
  }
});

test("connections that are lost while they are refused do not count as paused", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout"] });
  onTestFinished(() => void vi.useRealTimers());
  const { state, connect } = await startServer();
  state.isLost = true;
  for (let count = 0; count < 5; count++) {
    const client = await connect();
    client.send(get);
    await client.closed;
  }
  state.isLost = false;
  expect(await (await connect()).ask()).toEqual([[503, 1]]);
});

test("after stop() every connection is read, also those that are still being refused", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout"] });
  onTestFinished(() => void vi.useRealTimers());
  const server = await startServer({ perSecond: 1 });
  await tellMany(server);
  const [refusedClient, half] = [await server.connect(), await server.connect()];
  expect(await half.ask(post.slice(0, -2))).toEqual([[503, 8]]);
  expect(await refusedClient.ask()).toEqual([[503, 8]]);
  refusedClient.send(get);
  server.overload.stop();
  expect(server.state.isStopped).toBe(true);
  await refusedClient.answered(2);
  await half.ask(`{}${get}`);
  await half.ask();
});
