/**
 * Measures a request of an inbound message stream before it is decoded: two bytes on the wire can become an object.
 * Also bounds the memory held for requests that have begun to arrive.
 */

import type { Compression, UniversalHandler } from "@connectrpc/connect/protocol";
import { compressionBrotli, compressionGzip } from "@connectrpc/connect-node";
import { Failure } from "../failures.ts";
import { callKey } from "./call-context.ts";
import { ownerOf } from "./caller-bounds.ts";
import { around, bytesOf } from "./handlers.ts";
import type { MemoryBudget } from "./memory-budget.ts";
import { incompleteMessage, malformedMessage, tooLargeMessage } from "./message-errors.ts";

const maxMessagesInRequest = 1_000;
/** A message has eight fields, its timestamp's two included. As many again may come with later versions. */
const maxFieldsInRequest = maxMessagesInRequest * 17;

/** Wire types of protobuf. */
const varint = 0;
const fixed64 = 1;
const lengthDelimited = 2;
const fixed32 = 5;
/** Field numbers: the only one of a request, the last one of a message, the last one of a timestamp. */
const messagesField = 1;
const receivedAtField = 6;
const lastInstantField = 2;
const maxTagBytes = 5;
const maxVarintBytes = 10;
const prefixBytes = 5;
/** The compression bit of an envelope's flags. Over gRPC, Connect ignores all other bits. */
const isPacked = 0b1;
/** A request up to this size, which is 200 messages, is held without reserving room. */
const unreservedBytes = 64 * 1024;
/** The gateway's timeout for a request: how long the rest of a request that has begun may take. */
const restWithinMs = 10_000;
/** At two bytes per field, a request up to this size cannot exceed the limits, and is not counted. */
const uncountedBytes = 2 * maxMessagesInRequest;

const tooManyMessages = () =>
  new Failure("validation_failed", {
    fields: [{ field: "messages", message: `must have at most ${maxMessagesInRequest} entries` }],
  });

/**
 * Counts the fields of a StreamInboundMessagesRequest on the wire, in chunks of any size: it skips length-delimited
 * values, except that it descends into messages and their timestamps. It refuses encodings that the decoder might read
 * differently, since the two would then count differently.
 */
class FieldCount {
  readonly #length: number;
  /** Where the current message, and within it the current timestamp, ends. */
  readonly #ends: number[] = [];
  #at = 0;
  #messages = 0;
  #fields = 0;
  #skip = 0;
  /** Length of a message that begins at the current position. */
  #opened = 0;
  #awaits: "tag" | "length" | "varint" = "tag";
  #value = 0;
  #valueBytes = 0;
  #field = 0;

  constructor(length: number) {
    this.#length = length;
  }

  /** Takes the next bytes of the request. Throws if it exceeds the limits or is malformed. */
  take(bytes: Uint8Array, from: number, to: number): void {
    for (let index = from; index < to; ) {
      const step = this.#skip > 0 ? Math.min(this.#skip, to - index) : 1;
      this.#at += step;
      if (this.#skip > 0) this.#skip -= step;
      else this.#read(bytes[index] as number);
      index += step;
      if (this.#opened > 0 && this.#opened <= to - index) {
        this.#fields += fieldsOf(bytes, index, index + this.#opened, false);
        if (this.#fields > maxFieldsInRequest) throw malformedMessage();
        this.#at += this.#opened;
        index += this.#opened;
      }
      this.#opened = 0;
      while (this.#ends.length > 0 && this.#at >= (this.#ends.at(-1) as number)) {
        const isWhole = this.#awaits === "tag" && this.#valueBytes === 0 && this.#skip === 0;
        if (!isWhole) throw malformedMessage();
        this.#ends.pop();
      }
    }
  }

  #read(byte: number): void {
    this.#valueBytes += 1;
    if (this.#awaits === "varint") {
      if (this.#valueBytes > maxVarintBytes) throw malformedMessage();
      if (byte < 0x80) this.#await("tag");
      return;
    }
    // Decoders differ in how they read more than 32 bits.
    if (this.#valueBytes === maxTagBytes && byte > 0x0f) throw malformedMessage();
    this.#value += (byte & 0x7f) * 2 ** (7 * (this.#valueBytes - 1));
    if (byte >= 0x80) return;
    if (this.#awaits === "tag") this.#takeTag(this.#value >>> 3, this.#value & 7);
    else this.#takeLength(this.#value);
  }

  #takeTag(field: number, wireType: number): void {
    this.#fields += 1;
    if (field === 0 || this.#fields > maxFieldsInRequest) throw malformedMessage();
    const depth = this.#ends.length;
    const lastKnown = depth === 0 ? messagesField : depth === 1 ? receivedAtField : lastInstantField;
    const known = depth === 2 ? varint : lengthDelimited;
    // The decoder reads known fields by their declared type, whatever wire type is given.
    if (field <= lastKnown && wireType !== known) throw malformedMessage();
    this.#field = field;
    if (wireType === varint) this.#await("varint");
    else if (wireType === lengthDelimited) this.#await("length");
    else if (wireType === fixed64) this.#stepOver(8);
    else if (wireType === fixed32) this.#stepOver(4);
    else throw malformedMessage();
  }

  #takeLength(length: number): void {
    const depth = this.#ends.length;
    const isMessage = depth === 0 && this.#field === messagesField;
    if (isMessage) {
      this.#messages += 1;
      if (this.#messages > maxMessagesInRequest) throw tooManyMessages();
    }
    if (isMessage || (depth === 1 && this.#field === receivedAtField)) {
      if (length > this.#left()) throw malformedMessage();
      this.#ends.push(this.#at + length);
      if (isMessage) this.#opened = length;
      this.#await("tag");
    } else {
      this.#stepOver(length);
    }
  }

  #stepOver(bytes: number): void {
    if (bytes > this.#left()) throw malformedMessage();
    this.#skip = bytes;
    this.#await("tag");
  }

  #left(): number {
    return (this.#ends.at(-1) ?? this.#length) - this.#at;
  }

  #await(next: "tag" | "length" | "varint"): void {
    this.#awaits = next;
    this.#value = 0;
    this.#valueBytes = 0;
  }
}

/**
 * Counts the fields of a message, or of its timestamp, that is in `bytes` completely: by the same rules as FieldCount,
 * but faster, and nearly all messages are complete.
 */
function fieldsOf(bytes: Uint8Array, from: number, to: number, isInstant: boolean): number {
  const lastKnown = isInstant ? lastInstantField : receivedAtField;
  const known = isInstant ? varint : lengthDelimited;
  let at = from;
  let fields = 0;
  const shortVarint = () => {
    let byte = bytes[at++] as number;
    if (byte < 0x80) return byte;
    let value = byte & 0x7f;
    for (let read = 1; byte >= 0x80; read++) {
      byte = bytes[at++] ?? 0xff;
      if (read === maxTagBytes - 1 && byte > 0x0f) throw malformedMessage();
      value += (byte & 0x7f) * 2 ** (7 * read);
    }
    return value;
  };
  while (at < to) {
    const tag = shortVarint();
    const field = tag >>> 3;
    const wireType = tag & 7;
    if (field === 0 || (field <= lastKnown && wireType !== known)) throw malformedMessage();
    fields += 1;
    if (wireType === lengthDelimited) {
      const length = at < to ? shortVarint() : to;
      if (length > to - at) throw malformedMessage();
      if (!isInstant && field === receivedAtField) fields += fieldsOf(bytes, at, at + length, true);
      at += length;
    } else if (wireType === varint) {
      const last = at + maxVarintBytes;
      while (at < to && (bytes[at] as number) >= 0x80) at += 1;
      at += 1;
      if (at > last) throw malformedMessage();
    } else if (wireType === fixed64) {
      at += 8;
    } else if (wireType === fixed32) {
      at += 4;
    } else {
      throw malformedMessage();
    }
    if (at > to) throw malformedMessage();
    if (fields > maxFieldsInRequest) throw malformedMessage();
  }
  return fields;
}

/** Tracks the envelopes of a stream: gRPC's prefix of five bytes, then a message. */
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
      if ((this.#flags & isPacked) !== 0 || this.#length > unreservedBytes) this.endOfLarge = at;
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
    const isToBeCounted = (this.#flags & isPacked) === 0 && this.#length > uncountedBytes;
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
      let over = false;
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
      const look = (result: IteratorResult<Uint8Array>) => {
        if (result.done) {
          leaveRoom();
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
          if (over) leaveRoom();
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
          return look(await Promise.race([chunks.next(), tooLate]));
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
          return envelopes.unfinished > 0 ? rest() : chunks.next().then(look);
        },
        return: async () => {
          over = true;
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
  return [compressionGzip, compressionBrotli].map((compression) => ({
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
