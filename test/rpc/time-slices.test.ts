import { afterAll, expect, test } from "vitest";
import { InboundMessageService } from "../../src/gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { inTimeSlices } from "../../src/rpc/time-slices.ts";
import { startTestService } from "../harness/service.ts";
import { connectRaw } from "./raw-grpc.ts";

const service = await startTestService();
const token = await service.createToken({ scope: "ingest", source: "gateway" });
const connection = connectRaw(service.grpcAddress);
// Before the service is closed, which waits for who does not leave.
afterAll(() => connection.destroy());

/** Counts how often the event loop, which the service shares with this test, comes round. */
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

/** Whole messages of no bytes: no more of them can come at once. */
const requestsOf = (bytes: number) => new Uint8Array(Math.floor(bytes / 5) * 5);
const window = 65_535;

test("ingestion that gets thousands of requests at once lets everybody else have turns in between", async () => {
  const { typeName, method } = InboundMessageService;
  const call = connection.call(`${typeName}/${method.streamInboundMessages.name}`, {
    authorization: `Bearer ${token}`,
  });
  // The stream has been taken up, and is read, when something comes behind it on its connection.
  call.write(requestsOf(5));
  const health = connection.call("grpc.health.v1.Health/Check");
  health.write(requestsOf(5));
  health.halfClose();
  await health.status;

  const turns = countTurns();
  call.write(requestsOf(window - 5));
  call.halfClose();
  expect((await call.status).code).toBe(0);
  // Two, were they all read one right behind the other.
  expect(turns()).toBeGreaterThan(5);
});

/** Requests that are all there, and keep the event loop for a moment each. */
async function* busyRequests(count: number, taken: string[], name: string) {
  for (let index = 0; index < count; index++) {
    const until = performance.now() + 1;
    while (performance.now() < until);
    taken.push(name);
    yield index;
  }
}

test("streams take turns, and each gets all of its requests in their order", async () => {
  const taken: string[] = [];
  const read = (name: string) => Array.fromAsync(inTimeSlices(busyRequests(30, taken, name)));
  const all = await Promise.all(["one", "two", "three"].map(read));
  expect(all).toEqual(Array.from({ length: 3 }, () => Array.from({ length: 30 }, (_, index) => index)));
  for (const name of ["one", "two", "three"]) expect(taken.slice(0, 60)).toContain(name);
});

test("what is left early is told so, and what fails is heard", async () => {
  let wasLeft = false;
  async function* requests() {
    try {
      yield "first";
      throw new Error("cut");
    } finally {
      wasLeft = true;
    }
  }
  for await (const request of inTimeSlices(requests())) {
    expect(request).toBe("first");
    break;
  }
  expect(wasLeft).toBe(true);
  await expect(Array.fromAsync(inTimeSlices(requests()))).rejects.toThrow("cut");
});
