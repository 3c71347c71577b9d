/** The body of an inbound message stream as Connect reads it: what it holds while a large request is incomplete, and when it lets go. */

import { setImmediate } from "node:timers/promises";
import { create, toBinary } from "@bufbuild/protobuf";
import type { UniversalHandler, UniversalServerRequest } from "@connectrpc/connect/protocol";
import { expect, test } from "vitest";
import { StreamInboundMessagesRequestSchema } from "../../src/gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { withRequestLimits } from "../../src/rpc/inbound-message-bounds.ts";
import { MemoryBudget } from "../../src/rpc/memory-budget.ts";
import { framed } from "./raw-grpc.ts";

const request = framed(
  toBinary(
    StreamInboundMessagesRequestSchema,
    create(StreamInboundMessagesRequestSchema, { messages: [{ text: "t".repeat(100_000) }] }),
  ),
);
const [first, second] = [request.subarray(0, 50), request.subarray(50, 100)];
const most = request.length;

/** A body that yields these chunks, or fails with the error, and then waits until its reader leaves. */
function bodyOf(...results: (Uint8Array | Error)[]) {
  const left = Promise.withResolvers<IteratorResult<Uint8Array>>();
  let isLeft = false;
  const chunks: AsyncIterator<Uint8Array> = {
    async next() {
      const result = isLeft ? undefined : results.shift();
      if (result instanceof Error) throw result;
      return result === undefined ? left.promise : { done: false, value: result };
    },
    async return() {
      isLeft = true;
      left.resolve({ done: true, value: undefined });
      return left.promise;
    },
  };
  return { body: { [Symbol.asyncIterator]: () => chunks }, isLeft: () => isLeft };
}

async function read(body: AsyncIterable<Uint8Array>, room: MemoryBudget, maxBytes = most) {
  let passed: UniversalServerRequest["body"] | undefined;
  const handler = (async (given: UniversalServerRequest) => {
    passed = given.body;
    return { status: 200 };
  }) as UniversalHandler;
  await withRequestLimits(handler, { maxBytes, room })({ body } as UniversalServerRequest);
  return (passed as AsyncIterable<Uint8Array>)[Symbol.asyncIterator]();
}

/** Room for one request, and whether another has been let in. */
function roomForOne() {
  const room = new MemoryBudget({ inAll: most, each: most });
  let isIn = false;
  const another = () =>
    room.enter("another", most).then(() => {
      isIn = true;
    });
  return { room, another, isIn: () => isIn };
}

test("an incomplete request gives its room back if its body fails", async () => {
  const { room, another, isIn } = roomForOne();
  const reader = await read(bodyOf(first, second, new Error("cut")).body, room);
  await reader.next();
  await reader.next();
  const waiting = another();
  await setImmediate();
  expect(isIn()).toBe(false);
  await expect(reader.next()).rejects.toThrow("cut");
  await waiting;
});

test("an incomplete request gives its room back if its reader leaves, and its body is left", async () => {
  const { room, another, isIn } = roomForOne();
  const { body, isLeft } = bodyOf(first, second);
  const reader = await read(body, room);
  await reader.next();
  await reader.next();
  const waiting = another();
  await setImmediate();
  expect(isIn()).toBe(false);
  await reader.return?.();
  await waiting;
  expect(isLeft()).toBe(true);
});

test("a request whose reader leaves while it waits for room does not keep the room that it gets", async () => {
  const { room, another } = roomForOne();
  const leave = await room.enter("before", most);
  const reader = await read(bodyOf(first).body, room);
  await reader.next();
  const reading = reader.next();
  await reader.return?.();
  leave();
  await expect(reading).rejects.toMatchObject({ code: "malformed_request" });
  await another();
});

test("the body is left at a request that is refused", async () => {
  const { body, isLeft } = bodyOf(first);
  const reader = await read(body, roomForOne().room, 10);
  await expect(reader.next()).rejects.toMatchObject({ code: "body_too_large" });
  expect(isLeft()).toBe(true);
});
