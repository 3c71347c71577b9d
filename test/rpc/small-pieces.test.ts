/** Messages that arrive in small pieces reach a handler in few, and nothing that it could answer waits. */

import type { UniversalHandler, UniversalServerRequest } from "@connectrpc/connect/protocol";
import { expect, test } from "vitest";
import { withJoinedPieces } from "../../src/rpc/small-pieces.ts";
import { framed } from "./raw-grpc.ts";

/** The pieces that a handler gets of a body. */
async function piecesOf(chunks: AsyncIterable<Uint8Array> | Iterable<Uint8Array>, type = "application/grpc") {
  const pieces: string[] = [];
  const reading = Object.assign(
    async ({ body }: UniversalServerRequest) => {
      for await (const piece of body as AsyncIterable<Uint8Array>)
        pieces.push(Buffer.from(piece).toString("hex"));
      return { status: 200 };
    },
    { method: {} },
  ) as unknown as UniversalHandler;
  const body = (async function* () {
    yield* chunks;
  })();
  const request = {
    header: new Headers({ "content-type": type }),
    body,
  } as unknown as UniversalServerRequest;
  await withJoinedPieces(reading)(request);
  return pieces;
}

const hex = (text: string | Uint8Array) => Buffer.from(text).toString("hex");
const bytesOf = (bytes: Uint8Array) => [...bytes].map((byte) => Uint8Array.of(byte));
const [one, two] = [framed(Buffer.from("one")), framed(Buffer.from("three"))];
const compressed = Buffer.from([1, ...one.subarray(1)]);

test.for([
  { name: "a message that arrives whole", chunks: [one], pieces: [hex(one)] },
  { name: "several in one piece", chunks: [Buffer.concat([one, two])], pieces: [hex(one) + hex(two)] },
  {
    name: "messages byte by byte: each prefix, and what follows it",
    chunks: bytesOf(Buffer.concat([one, two])),
    pieces: [hex(one.subarray(0, 5)), hex("one"), hex(two.subarray(0, 5)), hex("three")],
  },
  {
    name: "empty messages byte by byte",
    chunks: bytesOf(Buffer.concat([framed(Buffer.of()), framed(Buffer.of())])),
    pieces: ["0000000000", "0000000000"],
  },
  {
    name: "a message whose end has the beginning of the next with it",
    chunks: [one.subarray(0, 6), Buffer.concat([one.subarray(6), two.subarray(0, 2)]), two.subarray(2)],
    pieces: [hex(one.subarray(0, 6)), hex(one.subarray(6)) + hex(two.subarray(0, 2)), hex(two.subarray(2))],
  },
  {
    name: "one that ends too early",
    chunks: bytesOf(two.subarray(0, 8)),
    pieces: [hex(two.subarray(0, 5)), hex("thr")],
  },
  {
    name: "a compressed message byte by byte, whose prefix has a flag",
    chunks: bytesOf(Buffer.concat([compressed, one])),
    pieces: [hex(compressed.subarray(0, 5)), hex("one"), hex(one.subarray(0, 5)), hex("one")],
  },
  { name: "half of a prefix", chunks: bytesOf(one.subarray(0, 3)), pieces: ["000000"] },
  { name: "no bytes between others", chunks: [one, Buffer.of(), two], pieces: [hex(one), hex(two)] },
  { name: "nothing", chunks: [], pieces: [] },
])("$name", async ({ chunks, pieces }) => {
  expect(await piecesOf(chunks)).toEqual(pieces);
  expect(await piecesOf(chunks, "application/connect+proto")).toEqual(pieces);
});

test("a large message is passed on in pieces of four kilobytes", async () => {
  const message = framed(Buffer.alloc(10_000, "a"));
  const pieces = await piecesOf(bytesOf(message));
  expect(pieces.map((piece) => piece.length / 2)).toEqual([5, 4_096, 4_096, 1_808]);
  expect(pieces.join("")).toBe(hex(message));
});

test("a message behind one that arrived in large pieces is told from it", async () => {
  const large = framed(Buffer.alloc(10_000, "a"));
  const parts = [large.subarray(0, 5), large.subarray(5, 5_005), large.subarray(5_005)];
  const pieces = await piecesOf([...parts, ...bytesOf(one)]);
  expect(pieces).toEqual([...parts, one.subarray(0, 5), "one"].map(hex));
});

test("what has no prefixes is passed on as it comes", async () => {
  const chunks = bytesOf(Buffer.from('{"a":1}'));
  expect(await piecesOf(chunks, "application/json")).toEqual(chunks.map(hex));
});

test("an error behind a part of a message is the handler's", async () => {
  async function* broken() {
    yield* bytesOf(one.subarray(0, 7));
    throw new Error("cut");
  }
  await expect(piecesOf(broken())).rejects.toThrow("cut");
});
