/**
 * Looks how much a request of a stream of messages would be, before it is made: two bytes on the wire can be an object. And
 * bounds what is held of requests that have begun.
 */

import type { Compression, UniversalHandler } from "@connectrpc/connect/protocol";
import { compressionBrotli, compressionGzip } from "@connectrpc/connect-node";
import { Failure } from "../failures.ts";
import { callKey } from "./call-context.ts";
import { ownerOf } from "./caller-bounds.ts";
import { around, bytesOf } from "./handlers.ts";
import type { RequestRoom } from "./request-room.ts";
import { notWhole, unreadable } from "./unread.ts";

const maxMessagesInRequest = 1_000;
/** A message has eight, an instant's two among them. As many again may come with later versions. */
const maxFieldsInRequest = maxMessagesInRequest * 17;

/** Types on the wire. */
const varint = 0;
const fixed64 = 1;
const lengthDelimited = 2;
const fixed32 = 5;
/** Fields of a request, of a message (the last that it has), of an instant (likewise). */
const messagesField = 1;
const receivedAtField = 6;
const lastInstantField = 2;
const maxTagBytes = 5;
const maxVarintBytes = 10;
const prefixBytes = 5;
/** Of an envelope's flags: that it is packed. All others Connect reads over, over gRPC. */
const isPacked = 0b1;
/** A request is held without asking for room where it is no longer than this: that is 200 messages. */
const modestBytes = 64 * 1024;
/** As long as the gateway gives a request: so long this process may have to wait for the rest of one that has begun. */
const restWithinMs = 10_000;
/** With two bytes a field what is no longer than this cannot be too much, and is not looked at. */
const harmlessBytes = 2 * maxMessagesInRequest;

const tooManyMessages = () =>
  new Failure("validation_failed", {
    fields: [{ field: "messages", message: `must be at most ${maxMessagesInRequest} in one request` }],
  });

/**
 * Counts a StreamInboundMessagesRequest's fields on the wire, in whatever pieces it comes: steps over what has a length, into
 * messages and their instants. What the decoder could read otherwise than this is refused, or the two would count differently.
 */
class FieldCount {
  readonly #length: number;
  /** Where the message that is being looked at ends, and its instant. */
  readonly #ends: number[] = [];
  #at = 0;
  #messages = 0;
  #fields = 0;
  #skip = 0;
  /** The length of a message that begins here. */
  #opened = 0;
  #awaits: "tag" | "length" | "varint" = "tag";
  #value = 0;
  #valueBytes = 0;
  #field = 0;

  constructor(length: number) {
    this.#length = length;
  }

  /** The next bytes of it. Throws where it is too much. */
  take(bytes: Uint8Array, from: number, to: number): void {
    for (let index = from; index < to; ) {
      const step = this.#skip > 0 ? Math.min(this.#skip, to - index) : 1;
      this.#at += step;
      if (this.#skip > 0) this.#skip -= step;
      else this.#read(bytes[index] as number);
      index += step;
      if (this.#opened > 0 && this.#opened <= to - index) {
        this.#fields += fieldsOf(bytes, index, index + this.#opened, false);
        if (this.#fields > maxFieldsInRequest) throw unreadable();
        this.#at += this.#opened;
        index += this.#opened;
      }
      this.#opened = 0;
      while (this.#ends.length > 0 && this.#at >= (this.#ends.at(-1) as number)) {
        const isWhole = this.#awaits === "tag" && this.#valueBytes === 0 && this.#skip === 0;
        if (!isWhole) throw unreadable();
        this.#ends.pop();
      }
    }
  }

  #read(byte: number): void {
    this.#valueBytes += 1;
    if (this.#awaits === "varint") {
      if (this.#valueBytes > maxVarintBytes) throw unreadable();
      if (byte < 0x80) this.#await("tag");
      return;
    }
    // Beyond 32 bits, of which decoders have ideas of their own.
    if (this.#valueBytes === maxTagBytes && byte > 0x0f) throw unreadable();
    this.#value += (byte & 0x7f) * 2 ** (7 * (this.#valueBytes - 1));
    if (byte >= 0x80) return;
    if (this.#awaits === "tag") this.#takeTag(this.#value >>> 3, this.#value & 7);
    else this.#takeLength(this.#value);
  }

  #takeTag(field: number, wireType: number): void {
    this.#fields += 1;
    if (field === 0 || this.#fields > maxFieldsInRequest) throw unreadable();
    const depth = this.#ends.length;
    const lastKnown = depth === 0 ? messagesField : depth === 1 ? receivedAtField : lastInstantField;
    const known = depth === 2 ? varint : lengthDelimited;
    // The decoder reads what it knows as it knows it, whatever is said here.
    if (field <= lastKnown && wireType !== known) throw unreadable();
    this.#field = field;
    if (wireType === varint) this.#await("varint");
    else if (wireType === lengthDelimited) this.#await("length");
    else if (wireType === fixed64) this.#stepOver(8);
    else if (wireType === fixed32) this.#stepOver(4);
    else throw unreadable();
  }

  #takeLength(length: number): void {
    const depth = this.#ends.length;
    const isMessage = depth === 0 && this.#field === messagesField;
    if (isMessage) {
      this.#messages += 1;
      if (this.#messages > maxMessagesInRequest) throw tooManyMessages();
    }
    if (isMessage || (depth === 1 && this.#field === receivedAtField)) {
      if (length > this.#left()) throw unreadable();
      this.#ends.push(this.#at + length);
      if (isMessage) this.#opened = length;
      this.#await("tag");
    } else {
      this.#stepOver(length);
    }
  }

  #stepOver(bytes: number): void {
    if (bytes > this.#left()) throw unreadable();
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
 * How many fields a message has that is there as a whole, or its instant: by the same rules, in less time, and nearly all are.
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
      if (read === maxTagBytes - 1 && byte > 0x0f) throw unreadable();
      value += (byte & 0x7f) * 2 ** (7 * read);
    }
    return value;
  };
  while (at < to) {
    const tag = shortVarint();
    const field = tag >>> 3;
    const wireType = tag & 7;
    if (field === 0 || (field <= lastKnown && wireType !== known)) throw unreadable();
    fields += 1;
    if (wireType === lengthDelimited) {
      const length = at < to ? shortVarint() : to;
      if (length > to - at) throw unreadable();
      if (!isInstant && field === receivedAtField) fields += fieldsOf(bytes, at, at + length, true);
      at += length;
    } else if (wireType === varint) {
      const last = at + maxVarintBytes;
      while (at < to && (bytes[at] as number) >= 0x80) at += 1;
      at += 1;
      if (at > last) throw unreadable();
    } else if (wireType === fixed64) {
      at += 8;
    } else if (wireType === fixed32) {
      at += 4;
    } else {
      throw unreadable();
    }
    if (at > to) throw unreadable();
    if (fields > maxFieldsInRequest) throw unreadable();
  }
  return fields;
}

/** Follows the envelopes of a stream (gRPC's prefix of five bytes, then a message). */
class Envelopes {
  readonly #maxBytes: number;
  #prefixBytes = 0;
  #flags = 0;
  #length = 0;
  #left = 0;
  #count: FieldCount | undefined;
  /** How many have begun. */
  ordinal = 0;

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  /** The length of the message that has begun and is not whole; 0: there is none. */
  get unfinished(): number {
    return this.#left > 0 ? this.#length : 0;
  }

  /** Answers the refusal of a message that is too much, and where in these bytes it begins. */
  take(bytes: Uint8Array): { refusal: unknown; from: number } | undefined {
    let from = 0;
    for (let at = 0; at < bytes.length; ) {
      if (this.#prefixBytes < prefixBytes) {
        if (this.#prefixBytes === 0) from = at;
        this.#takePrefix(bytes[at] as number);
        at += 1;
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
      if (this.#left === 0) this.#prefixBytes = 0;
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
    // What is too large is refused for that.
    const isToBeCounted =
      (this.#flags & isPacked) === 0 && this.#length > harmlessBytes && this.#length <= this.#maxBytes;
    this.#count = isToBeCounted ? new FieldCount(this.#length) : undefined;
    if (this.#left === 0) this.#prefixBytes = 0;
  }
}

/** Lets a request enter before it is held; answers what gives its room back. */
type Enter = (bytes: number) => Promise<() => void>;

/** The same bytes up to the first message that is too much, or not whole in time; then its refusal. */
function counted(body: AsyncIterable<Uint8Array>, maxBytes: number, enter: Enter): AsyncIterable<Uint8Array> {
  return {
    [Symbol.asyncIterator]() {
      const chunks = body[Symbol.asyncIterator]();
      const envelopes = new Envelopes(maxBytes);
      let refused: { refusal: unknown; from: number } | undefined;
      let over = false;
      /** Of the request that is not whole yet: which it is, how long its rest was waited for, its room. */
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
      const look = (result: IteratorResult<Uint8Array>) => {
        if (result.done) {
          leaveRoom();
          return result;
        }
        refused = envelopes.take(result.value);
        if (refused !== undefined || envelopes.unfinished === 0 || envelopes.ordinal !== awaited) leaveRoom();
        if (refused === undefined) return result;
        if (refused.from === 0) return refuse();
        return { done: false, value: result.value.subarray(0, refused.from) };
      };
      /** The next bytes of a request that has begun. */
      const rest = async () => {
        if (awaited !== envelopes.ordinal) {
          awaited = envelopes.ordinal;
          waitedMs = 0;
          const { unfinished } = envelopes;
          // What is larger is refused for that.
          if (unfinished > modestBytes && unfinished <= maxBytes) leave = await enter(unfinished);
          if (over) leaveRoom();
        }
        const startedAt = performance.now();
        let timer: NodeJS.Timeout | undefined;
        const tooLate = new Promise<never>((_, reject) => {
          timer = setTimeout(() => {
            refused = { refusal: notWhole(), from: 0 };
            reject(refused.refusal);
          }, restWithinMs - waitedMs);
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

/** Refuses what would be too much before the handler decodes it; what is packed, see `countedWhenUnpacked`. */
export function countedRequests(
  handler: UniversalHandler,
  { maxBytes, room }: { readonly maxBytes: number; readonly room: RequestRoom },
): UniversalHandler {
  return around(handler, async (request) => {
    // Its bytes would have to be in base64, which no client knows of.
    if (request.header.get("content-type")?.includes("json")) return { status: 415 };
    const body = bytesOf(request);
    if (body === undefined) return handler(request);
    const enter: Enter = (bytes) => {
      const caller = request.contextValues?.get(callKey)?.caller;
      return room.enter(caller ? ownerOf(caller) : "", bytes);
    };
    return handler({ ...request, body: counted(body, maxBytes, enter) });
  });
}

export const countedWhenUnpacked: Compression[] = [compressionGzip, compressionBrotli].map((compression) => ({
  ...compression,
  async decompress(packed, maxBytes) {
    const bytes = await compression.decompress(packed, maxBytes);
    if (bytes.length > harmlessBytes) new FieldCount(bytes.length).take(bytes, 0, bytes.length);
    return bytes;
  },
}));
