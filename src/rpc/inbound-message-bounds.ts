/**
 * Measures a request of an inbound message stream before it is decoded: two bytes on the wire can become an object.
 * Also bounds the memory held for requests that have begun to arrive.
 */

import type { Compression, UniversalHandler } from "@connectrpc/connect/protocol";
import { callKey } from "./call-context.ts";
import { ownerOf } from "./caller-bounds.ts";
import { compressions } from "./compressions.ts";
import { around, bytesOf, prefixBytes } from "./handlers.ts";
import { FieldCount, uncountedBytes } from "./inbound-field-count.ts";
import type { MemoryBudget } from "./memory-budget.ts";
import { incompleteMessage, malformedMessage, tooLargeMessage } from "./message-errors.ts";

/** The compression bit of an envelope's flags. Over gRPC, Connect ignores all other bits. */
const isCompressed = 0b1;
/** A request up to this size, which is 200 messages, is held without reserving room. */
const unreservedBytes = 64 * 1024;
/** The gateway's timeout for a request: how long the rest of a request that has begun may take. */
const restWithinMs = 10_000;

/** Tracks the envelopes of a stream, each gRPC's prefix and a message. */
class Envelopes {
  readonly #maxBytes: number;
  #prefixBytes = 0;
  #flags = 0;
  #length = 0;
  #left = 0;
  #count: FieldCount | undefined;
  /** How many envelopes have begun. */
  ordinal = 0;
  /**
   * Where, in the bytes taken last, the last request ends that is large, or may be once it is decompressed; undefined if there is
   * none.
   */
  endOfLarge: number | undefined;

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  /** Whether an envelope has begun and is incomplete. */
  get isCut(): boolean {
    return this.#prefixBytes > 0;
  }

  /** Length of the message that has begun and is incomplete; 0 if there is none. */
  get unfinished(): number {
    return this.#left > 0 ? this.#length : 0;
  }

  /** Returns the refusal of a message that exceeds the limits, and the offset of its envelope in these bytes. */
  take(bytes: Uint8Array): { refusal: unknown; from: number } | undefined {
    let from = 0;
    this.endOfLarge = undefined;
    for (let at = 0; at < bytes.length; ) {
      if (this.#prefixBytes < prefixBytes) {
        if (this.#prefixBytes === 0) from = at;
        this.#takePrefix(bytes[at] as number);
        at += 1;
        // Connect would refuse it as well, but before it yields the complete requests in front of it.
        if (this.#left > this.#maxBytes) return { refusal: tooLargeMessage(), from };
        continue;
      }
      const to = Math.min(bytes.length, at + this.#left);
      try {
        this.#count?.take(bytes, at, to);
      } catch (refusal) {
        return { refusal, from };
      }
      this.#left -= to - at;
      at = to;
      if (this.#left > 0) continue;
      this.#prefixBytes = 0;
      if ((this.#flags & isCompressed) !== 0 || this.#length > unreservedBytes) this.endOfLarge = at;
    }
    return undefined;
  }

  #takePrefix(byte: number): void {
    this.#prefixBytes += 1;
    if (this.#prefixBytes === 1) {
      this.#flags = byte;
      this.#length = 0;
      return;
    }
    this.#length = this.#length * 256 + byte;
    if (this.#prefixBytes < prefixBytes) return;
    this.#left = this.#length;
    this.ordinal += 1;
    const isToBeCounted = (this.#flags & isCompressed) === 0 && this.#length > uncountedBytes;
    this.#count = isToBeCounted ? new FieldCount(this.#length) : undefined;
    if (this.#left === 0) this.#prefixBytes = 0;
  }
}

/** Waits for room before a request is held; the returned function releases that room. */
type Enter = (bytes: number) => Promise<() => void>;

/** Passes the bytes on up to the first message that exceeds the limits or is late to complete, then throws its refusal. */
function counted(body: AsyncIterable<Uint8Array>, maxBytes: number, enter: Enter): AsyncIterable<Uint8Array> {
  return {
    [Symbol.asyncIterator]() {
      const chunks = body[Symbol.asyncIterator]();
      const envelopes = new Envelopes(maxBytes);
      let refused: { refusal: unknown; from: number } | undefined;
      /** Of the incomplete request: its ordinal, how long its rest was waited for, and how to release its room. */
      let awaited = 0;
      let waitedMs = 0;
      let leave: (() => void) | undefined;
      const leaveRoom = () => {
        leave?.();
        leave = undefined;
      };
      const refuse = async () => {
        await chunks.return?.();
        throw refused?.refusal;
      };
      /** What is passed on before anything else is read. */
      let pieces: Uint8Array[] = [];
      const nextPiece = () => ({ done: false, value: pieces.shift() as Uint8Array });
      const passOn = (result: IteratorResult<Uint8Array>) => {
        if (result.done) {
          // Connect takes a stream that ends right behind a prefix for complete.
          if (envelopes.isCut) throw malformedMessage();
          return result;
        }
        refused = envelopes.take(result.value);
        if (refused !== undefined || envelopes.unfinished === 0 || envelopes.ordinal !== awaited) leaveRoom();
        const passed = refused === undefined ? result.value : result.value.subarray(0, refused.from);
        if (passed.length === 0) return refused === undefined ? result : refuse();
        const end = envelopes.endOfLarge;
        if (end === undefined) return { done: false, value: passed };
        // An idle stream keeps its last request: Connect's generators hold it until they read another one, from another piece.
        // Without an empty request behind it, each of a token's streams could keep eight megabytes.
        pieces = [new Uint8Array(prefixBytes)];
        if (end < passed.length) pieces.push(passed.subarray(end));
        return { done: false, value: passed.subarray(0, end) };
      };
      /** Returns the next bytes of a request that has begun. */
      const rest = async () => {
        if (awaited !== envelopes.ordinal) {
          awaited = envelopes.ordinal;
          waitedMs = 0;
          const { unfinished } = envelopes;
          if (unfinished > unreservedBytes) leave = await enter(unfinished);
        }
        const startedAt = performance.now();
        let timer: NodeJS.Timeout | undefined;
        const tooLate = new Promise<never>((_, reject) => {
          timer = setTimeout(
            () => {
              refused = { refusal: incompleteMessage(), from: 0 };
              reject(refused.refusal);
            },
            Math.max(0, restWithinMs - waitedMs),
          );
        });
        try {
          return passOn(await Promise.race([chunks.next(), tooLate]));
        } catch (error) {
          leaveRoom();
          throw error;
        } finally {
          clearTimeout(timer);
          waitedMs += performance.now() - startedAt;
        }
      };
      return {
        next: () => {
          if (pieces.length > 0) return Promise.resolve(nextPiece());
          if (refused) return refuse();
          return envelopes.unfinished > 0 ? rest() : chunks.next().then(passOn);
        },
        return: async () => {
          leaveRoom();
          return (await chunks.return?.()) ?? { done: true, value: undefined };
        },
      };
    },
  };
}

/** Refuses a request that exceeds the limits before the handler decodes it; for compressed ones see `countedCompressions`. */
export function withRequestLimits(
  handler: UniversalHandler,
  { maxBytes, room }: { readonly maxBytes: number; readonly room: MemoryBudget },
): UniversalHandler {
  return around(handler, async (request) => {
    const body = bytesOf(request);
    if (body === undefined) return handler(request);
    const enter: Enter = (bytes) => {
      const caller = request.contextValues?.get(callKey)?.caller;
      return room.enter(caller ? ownerOf(caller) : "", bytes);
    };
    return handler({ ...request, body: counted(body, maxBytes, enter) });
  });
}

/**
 * The compressions of a stream's requests. Each request is counted once decompressed, and waits for `room` before: a few
 * kilobytes expand to `maxBytes`, so one token's streams could otherwise fill the memory with a single small frame each.
 */
export function countedCompressions(room: MemoryBudget): Compression[] {
  return compressions.map((compression) => ({
    ...compression,
    async decompress(packed, maxBytes) {
      // How long it will be is known only afterwards.
      const leave = await room.enter("", maxBytes);
      try {
        const bytes = await compression.decompress(packed, maxBytes);
        if (bytes.length > uncountedBytes) new FieldCount(bytes.length).take(bytes, 0, bytes.length);
        return bytes;
      } finally {
        leave();
      }
    },
  }));
}
