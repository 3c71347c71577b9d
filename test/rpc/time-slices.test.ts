import { afterAll, expect, onTestFinished, test } from "vitest";
import { inTimeSlices, turnOfOthers } from "../../src/core/time-slices.ts";
import { InboundMessageService } from "../../src/gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { blockFor } from "../harness/blocking.ts";
import { startTestService } from "../harness/service.ts";
import { connectRaw, type RawConnection } from "./raw-grpc.ts";

const service = await startTestService();
const token = await service.createToken({ scope: "ingest", source: "gateway" });
const tokenOfAnother = await service.createToken({ scope: "ingest", source: "another" });
const connection = connectRaw(service.grpcAddress);
// Before the service closes, which waits for open connections.
afterAll(() => connection.destroy());

/** Counts the turns of the event loop, which the service shares with this test. */
function countTurns() {
  let count = 0;
  let next = setImmediate(function turn() {
    count += 1;
    next = setImmediate(turn);
  });
  return () => {
    clearImmediate(next);
    return count;
  };
}

/** Empty messages, the most requests that fit into this many bytes. */
const requestsOf = (bytes: number) => new Uint8Array(Math.floor(bytes / 5) * 5);
const window = 65_535;

/** Streams that are being read: a later call on their connection has been answered. */
async function openStreams(connection: RawConnection, count: number, token: string) {
  const { typeName, method } = InboundMessageService;
  const path = `${typeName}/${method.streamInboundMessages.name}`;
  const calls = Array.from({ length: count }, () =>
    connection.call(path, { authorization: `Bearer ${token}` }),
  );
  for (const call of calls) call.write(requestsOf(5));
  await checkHealth(connection);
  return calls;
}

async function checkHealth(connection: RawConnection) {
  const health = connection.call("grpc.health.v1.Health/Check");
  health.write(requestsOf(5));
  health.halfClose();
  await health.status;
}

test("an inbound stream with thousands of requests at once yields to the event loop in between", async () => {
  const [call] = await openStreams(connection, 1, token);
  if (call === undefined) throw new Error("there is no stream");
  const turns = countTurns();
  call.write(requestsOf(window - 5));
  call.halfClose();
  expect((await call.status).code).toBe(0);
  // Without a pause in reading there would be two.
  expect(turns()).toBeGreaterThan(5);
});

test("all streams of a source take turns as one: another source does not wait for each of them", async () => {
  const perConnection = 4;
  const connections = Array.from({ length: 15 }, () => connectRaw(service.grpcAddress));
  onTestFinished(() => {
    for (const one of connections) one.destroy();
  });
  const [[call], ...many] = await Promise.all([
    openStreams(connection, 1, tokenOfAnother),
    ...connections.map((one) => openStreams(one, perConnection, token)),
  ]);
  const calls = many.flat();
  for (const one of calls) {
    // Together, as many as their connection takes at once.
    one.write(requestsOf(window / perConnection - 5));
    one.halfClose();
  }
  // All of these have arrived then, and wait for their turns.
  await checkHealth(connection);
  const turns = countTurns();
  call?.write(requestsOf(5));
  call?.halfClose();
  expect((await call?.status)?.code).toBe(0);
  expect(turns()).toBeLessThan(calls.length / 2);
  for (const one of calls) expect((await one.status).code).toBe(0);
});

/** Requests that are available at once, each of which blocks the event loop for a moment. */
async function* busyRequests(count: number, taken: string[], name: string) {
  for (let index = 0; index < count; index++) {
    blockFor(1);
    taken.push(name);
    yield index;
  }
}

test("streams take turns, and each gets all of its requests in order", async () => {
  const taken: string[] = [];
  const read = (name: string) => Array.fromAsync(inTimeSlices(busyRequests(30, taken, name), name));
  const all = await Promise.all(["one", "two", "three"].map(read));
  expect(all).toEqual(Array.from({ length: 3 }, () => Array.from({ length: 30 }, (_, index) => index)));
  // In five milliseconds a stream takes at most six requests: it has at least five turns, with others in between.
  const countIn = (names: readonly string[], name: string) => names.filter((one) => one === name).length;
  const untilOneEnded = taken.slice(
    0,
    taken.findIndex((name, index) => countIn(taken.slice(0, index + 1), name) === 30),
  );
  for (const name of ["one", "two", "three"]) expect(countIn(untilOneEnded, name)).toBeGreaterThanOrEqual(4);
});

test("work whose turn has come and that is then done leaves the turn to the others", async () => {
  turnOfOthers();
  blockFor(10);
  // The slice is over, so each waits for a turn, and asks for none after it.
  const waiting = [turnOfOthers(), turnOfOthers(), turnOfOthers()];
  expect(waiting).not.toContain(undefined);
  await Promise.all(waiting);
});

test("a source that is left early is closed, and the error of one that fails is passed on", async () => {
  let wasLeft = false;
  async function* requests() {
    try {
      yield "first";
      throw new Error("cut");
    } finally {
      wasLeft = true;
    }
  }
  for await (const request of inTimeSlices(requests(), "one")) {
    expect(request).toBe("first");
    break;
  }
  expect(wasLeft).toBe(true);
  await expect(Array.fromAsync(inTimeSlices(requests(), "one"))).rejects.toThrow("cut");
});
