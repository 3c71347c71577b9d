/** The order of turns, with the test's own clock. test/service/overload.test.ts checks that no request is lost. */

import type { Socket } from "node:net";
import { setImmediate } from "node:timers/promises";
import v8 from "node:v8";
import vm from "node:vm";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { createConnectionTurns, maxInFlight } from "../../src/gateway/connection-turns.ts";
import { markPaused } from "../../src/gateway/paused-sockets.ts";

let now = 5_000;
let busyShare = 1;
const turns = () => createConnectionTurns({ clock: () => now, busyShareOf: () => busyShare });

beforeEach(() => {
  vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
});
afterEach(() => {
  vi.useRealTimers();
  busyShare = 1;
});

class Connection {
  isRead = true;
  destroyed = false;
  pause() {
    this.isRead = false;
  }
  resume() {
    this.isRead = true;
  }
  get socket() {
    return this as unknown as Socket;
  }
}

/** Begins requests that stay in flight. Returns when they began. */
function take(from: ReturnType<typeof turns>, count: number): number {
  for (let taken = 0; taken < count; taken++) from.begun(now);
  return now;
}

/** Answers further requests of a connection that is not read anyway. */
function answerFurther(from: ReturnType<typeof turns>, count: number): void {
  const { socket } = new Connection();
  markPaused(socket);
  for (let answered = 0; answered <= count; answered++) from.answered(socket, null);
}

/** One more request, answered at once, on each of `count` connections, among further requests of another. */
function ask(from: ReturnType<typeof turns>, count: number): Connection[] {
  answerFurther(from, 4 * count + 4);
  return Array.from({ length: count }, () => {
    const connection = new Connection();
    from.begun(now);
    from.answered(connection.socket, now);
    return connection;
  });
}

const read = (connections: readonly Connection[]) => connections.map(({ isRead }) => isRead);

test("an answered connection is read on, unless enough requests are in flight", () => {
  const some = turns();
  take(some, maxInFlight - 1);
  expect(read(ask(some, 3))).toEqual([true, true, true]);
  take(some, 1);
  expect(read(ask(some, 3))).toEqual([false, false, false]);
});

test("turns are given in the order of the answers, as many as there is room for", async () => {
  const some = turns();
  const begunAt = take(some, maxInFlight + 1);
  const connections = ask(some, 4);
  const other = new Connection();
  some.answered(other.socket, begunAt);
  await setImmediate();
  expect(read([...connections, other])).toEqual([false, false, false, false, false]);
  for (let ended = 0; ended < 3; ended++) some.ended(begunAt, true);
  expect(read([...connections, other])).toEqual([false, false, false, false, false]);
  await setImmediate();
  expect(read([...connections, other])).toEqual([true, true, true, false, false]);
});

test("an answered connection waits behind those that wait already, though fewer requests are in flight by now", async () => {
  const some = turns();
  const begunAt = take(some, maxInFlight);
  const early = ask(some, 2);
  await setImmediate();
  for (let ended = 0; ended < 2; ended++) some.ended(begunAt, true);
  const late = ask(some, 2);
  expect(read(late)).toEqual([false, false]);
  await setImmediate();
  expect(read([...early, ...late])).toEqual([true, true, false, false]);
  some.ended(begunAt, true);
  await setImmediate();
  expect(read(late)).toEqual([true, true]);
  expect(read(ask(some, 1))).toEqual([true]);
});

test("a connection that does not use its turn does not hold up the others, however often all have had theirs", async () => {
  const some = turns();
  for (let episode = 0; episode < 2; episode++) {
    const begunAt = take(some, maxInFlight);
    const connections = ask(some, 10);
    await setImmediate();
    some.ended(begunAt, true);
    await setImmediate();
    for (let turn = 0; turn < connections.length; turn++) {
      expect(read(connections)).toEqual(connections.map((_, position) => position <= turn));
      vi.advanceTimersByTime(100);
    }
    expect(vi.getTimerCount()).toBe(0);
    for (let left = 1; left < maxInFlight; left++) some.ended(begunAt, true);
    now += 100;
    answerFurther(some, 2 * maxInFlight);
  }
});

test("a connection that is closed, or paused after a refusal, does not wait for a turn", () => {
  const some = turns();
  const begunAt = take(some, maxInFlight + 2);
  const [closed, unheard] = [new Connection(), new Connection()];
  closed.destroyed = true;
  markPaused(unheard.socket);
  some.answered(closed.socket, begunAt);
  some.answered(unheard.socket, begunAt);
  now += 100;
  expect(some.waitedMs()).toBe(0);
  expect(vi.getTimerCount()).toBe(0);
});

test("a connection that waits for its turn waits only for one, though pipelined requests of it are answered", async () => {
  const some = turns();
  const begunAt = take(some, maxInFlight + 2);
  const [pipelining] = ask(some, 1) as [Connection];
  some.answered(pipelining.socket, begunAt);
  const [other] = ask(some, 1) as [Connection];
  for (let ended = 0; ended < 3; ended++) some.ended(begunAt, true);
  await setImmediate();
  expect(read([pipelining, other])).toEqual([true, true]);
});

test("a connection that closes while it waits gets no turn and no longer counts as waiting", async () => {
  const some = turns();
  const begunAt = take(some, maxInFlight);
  const [lost] = ask(some, 1) as [Connection];
  now += 50;
  const [other, last] = ask(some, 2) as [Connection, Connection];
  now += 50;
  expect(some.waitedMs()).toBe(100);
  lost.destroyed = true;
  expect(some.waitedMs()).toBe(50);
  some.ended(begunAt, true);
  vi.advanceTimersByTime(100);
  expect(read([lost, other, last])).toEqual([false, true, false]);
  last.destroyed = true;
  expect(some.waitedMs()).toBe(0);
});

test("requests in flight for more than a second no longer make others wait, and their end changes nothing", async () => {
  const some = turns();
  const begunAt = take(some, maxInFlight);
  now += 899;
  const [connection] = ask(some, 1) as [Connection];
  expect(connection.isRead).toBe(false);
  now += 101;
  vi.advanceTimersByTime(100);
  expect(connection.isRead).toBe(true);
  for (let ended = 0; ended < maxInFlight; ended++) some.ended(begunAt, true);
  take(some, maxInFlight - 1);
  expect(read(ask(some, 1))).toEqual([true]);
  take(some, 1);
  expect(read(ask(some, 1))).toEqual([false]);
});

test("a process that is not busy makes no connection wait, and soon reads those that do", async () => {
  const some = turns();
  take(some, 3 * maxInFlight);
  const connections = ask(some, 2 * maxInFlight + 1);
  await setImmediate();
  busyShare = 0.9;
  expect(read([...connections.slice(0, 1), ...ask(some, 1)])).toEqual([false, false]);
  now += 100;
  expect(read(ask(some, 1))).toEqual([true]);
  for (const roundsOver of [1, 2, 3]) {
    await setImmediate();
    expect(read(connections)).toEqual(connections.map((_, position) => position < roundsOver * maxInFlight));
  }
  now += 100;
  busyShare = 0.91;
  expect(read(ask(some, 1))).toEqual([false]);
});

test("after a long pause the count of requests in flight starts from zero", () => {
  const some = turns();
  take(some, maxInFlight);
  now += 3_600_000;
  take(some, maxInFlight - 1);
  expect(read(ask(some, 1))).toEqual([true]);
  take(some, 1);
  expect(read(ask(some, 1))).toEqual([false]);
  // Nor are those of before the pause subtracted later.
  now += 1_000;
  readAll();
  take(some, maxInFlight);
  expect(read(ask(some, 1))).toEqual([false]);
});

test("requests that began more than eight seconds ago count no more, whether they end or not", () => {
  const some = turns();
  const begunAt = take(some, 2 * maxInFlight);
  now += 8_000;
  take(some, maxInFlight);
  for (let ended = 0; ended < maxInFlight; ended++) some.ended(begunAt, false);
  answerFurther(some, 2 * maxInFlight);
  expect(read(ask(some, 1))).toEqual([false]);
  now += 1_000;
  readAll();
  expect(read(ask(some, 1))).toEqual([true]);
  take(some, maxInFlight);
  expect(read(ask(some, 1))).toEqual([false]);
});

test("turns are late if one takes longer than three seconds while the process is busy with enough requests", async () => {
  const some = turns();
  take(some, maxInFlight);
  expect([some.isLate(), some.waitedMs()]).toEqual([false, 0]);
  ask(some, 1);
  now += 2_700;
  take(some, maxInFlight);
  now += 300;
  expect([some.isLate(), some.waitedMs()]).toEqual([false, 3_000]);
  now += 1;
  expect([some.isLate(), some.waitedMs()]).toEqual([true, 3_001]);
  busyShare = 0.9;
  now += 100;
  expect(some.isLate()).toBe(false);
  busyShare = 1;
  now += 100;
  expect(some.isLate()).toBe(true);
  now += 10_000;
  ask(some, 1);
  expect(some.isLate()).toBe(false);
});

test("connections that have waited for more than four seconds are read, sixteen at a time, whatever is in flight", async () => {
  const some = turns();
  take(some, maxInFlight);
  const connections = ask(some, 40);
  for (const [elapsed, areRead] of [
    [2_000, 0],
    [2_000, 0],
    [1, 16],
    [100, 32],
    [100, 40],
  ] as const) {
    now += elapsed;
    take(some, maxInFlight);
    answerFurther(some, 100);
    await setImmediate();
    vi.advanceTimersByTime(100);
    expect(read(connections)).toEqual(connections.map((_, position) => position < areRead));
  }
});

/** Lets those that wait have their turns, as far as there is room. */
const readAll = () => vi.advanceTimersByTime(1_000);

/** Answers `count` requests of one connection that took this long. */
function answer(from: ReturnType<typeof turns>, count: number, tookMs: number): void {
  const { socket } = new Connection();
  for (let answered = 0; answered < count; answered++) {
    from.begun(now - tookMs);
    from.answered(socket, now - tookMs);
  }
}

test("if most answers take longer than a second, requests in flight for longer still make others wait", () => {
  const some = turns();
  take(some, maxInFlight);
  now += 1_500;
  answer(some, 256, 1_000);
  expect(read(ask(some, 1))).toEqual([true]);
  answer(some, 256, 1_001);
  expect(read(ask(some, 1))).toEqual([false]);
  now += 6_400;
  expect(read(ask(some, 1))).toEqual([false]);
  // But none for longer than eight seconds.
  now += 100;
  readAll();
  expect(read(ask(some, 1))).toEqual([true]);
});

test.for([
  {
    name: "a request that was refused, or whose body never came,",
    end: (from, socket) => from.answered(socket, null),
  },
  { name: "a request whose client has left", end: (from, socket) => from.answered(socket, take(from, 1)) },
  {
    name: "a request whose client wanted the connection closed, and has left",
    end: (from) => from.ended(take(from, 1), false),
  },
] as {
  name: string;
  end: (from: ReturnType<typeof turns>, socket: Socket) => void;
}[])("$name does not count in the measure of how long answers take", ({ end }) => {
  const some = turns();
  take(some, maxInFlight);
  now += 1_500;
  answer(some, 256, 1_001);
  const connection = new Connection();
  connection.destroyed = true;
  for (let over = 0; over < 1_000; over++) end(some, connection.socket);
  answerFurther(some, 1_000);
  now += 100;
  readAll();
  expect(read(ask(some, 1))).toEqual([false]);
});

test("answers on connections that then close also count in the measure of how long answers take", () => {
  const some = turns();
  take(some, maxInFlight);
  now += 1_500;
  answer(some, 256, 1_001);
  for (let over = 0; over < 256; over++) some.ended(take(some, 1), true);
  answer(some, 600, 1);
  now += 100;
  readAll();
  expect(read(ask(some, 1))).toEqual([true]);
});

test.for([
  { name: "close them", end: (from) => from.ended(null, true) },
  {
    name: "do not say that they will not use them again",
    end: (from) => from.answered(new Connection().socket, null),
  },
] as {
  name: string;
  end: (from: ReturnType<typeof turns>) => void;
}[])("if most requests come on connections of their own, no connection waits for a turn: clients $name", ({
  end,
}) => {
  const some = turns();
  take(some, 2 * maxInFlight);
  expect(read(ask(some, 10))).toEqual(new Array(10).fill(false));
  answerFurther(some, 10);
  for (let over = 0; over < 20; over++) end(some);
  now += 100;
  expect(read(ask(some, 1))).toEqual([true]);
  expect(some.isLate()).toBe(false);
  now += 100;
  expect(read(ask(some, 1))).toEqual([false]);
});

test("connections that were refused are read in turn, in one round no more than there is room for, on an idle process, too", async () => {
  const some = turns();
  const begunAt = take(some, maxInFlight);
  const waiting = ask(some, 2);
  const refused = Array.from({ length: 4 }, () => new Connection());
  for (const { socket } of refused) some.readInTurn(socket);
  await setImmediate();
  expect(read([...waiting, ...refused])).toEqual(Array(6).fill(false));
  for (let ended = 0; ended < 3; ended++) some.ended(begunAt, true);
  await setImmediate();
  expect(read([...waiting, ...refused])).toEqual([true, true, true, false, false, false]);

  busyShare = 0;
  now += 100;
  const many = Array.from({ length: maxInFlight + 1 }, () => new Connection());
  for (const { socket } of many) some.readInTurn(socket);
  await setImmediate();
  const rounds = () => read([...refused, ...many]).filter((isRead) => isRead).length;
  expect(rounds()).toBe(1 + maxInFlight);
  await setImmediate();
  expect(rounds()).toBe(4 + many.length);
});

test("connections that were refused get their share of a process that is kept busy by first requests", async () => {
  const some = turns();
  take(some, 2 * maxInFlight);
  for (let ended = 0; ended < 10; ended++) some.ended(null, true);
  const refused = Array.from({ length: 20 }, () => new Connection());
  for (const { socket } of refused) some.readInTurn(socket);
  await setImmediate();
  expect(read(refused).filter((isRead) => isRead)).toHaveLength(16);
});

test("connections that wait are read as far as there is room, though most requests are first ones", async () => {
  const some = turns();
  for (let ended = 0; ended < 10; ended++) some.ended(null, true);
  const refused = Array.from({ length: 20 }, () => new Connection());
  for (const { socket } of refused) some.readInTurn(socket);
  await setImmediate();
  expect(read(refused).filter((isRead) => isRead)).toHaveLength(20);
});

test("of the connections that wait, those that were refused are counted until they are read or have closed", async () => {
  const some = turns();
  const begunAt = take(some, maxInFlight);
  ask(some, 1);
  const refused = Array.from({ length: 5 }, () => new Connection()) as [Connection, ...Connection[]];
  for (const { socket } of refused) some.readInTurn(socket);
  expect(some.refusedWaiting()).toBe(5);
  refused[0].destroyed = true;
  for (let ended = 0; ended < 2; ended++) some.ended(begunAt, true);
  await setImmediate();
  expect(read(refused)).toEqual([false, true, false, false, false]);
  expect(some.refusedWaiting()).toBe(3);
  some.stop();
  expect(some.refusedWaiting()).toBe(0);
});

test("after stop() every connection is read, and none waits any more", () => {
  const some = turns();
  take(some, maxInFlight);
  const connections = ask(some, 3);
  some.stop();
  expect(read([...connections, ...ask(some, 1)])).toEqual([true, true, true, true]);
});

test("connections that have had their turn are not kept in memory", async () => {
  const some = turns();
  const begunAt = take(some, maxInFlight);
  const connections = ask(some, 4).map((connection) => new WeakRef(connection));
  for (let ended = 0; ended < connections.length; ended++) some.ended(begunAt, true);
  await setImmediate();
  await setImmediate();
  v8.setFlagsFromString("--expose-gc");
  vm.runInNewContext("gc")();
  expect(connections.map((connection) => connection.deref())).toEqual(connections.map(() => undefined));
  expect(some.waitedMs()).toBe(0);
});
