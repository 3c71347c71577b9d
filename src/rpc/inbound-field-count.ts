/** Counts the messages and fields of an inbound message request on the wire, before it is decoded. */

import { Failure } from "../failures.ts";
import { malformedMessage } from "./message-errors.ts";

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

/** At two bytes per field, a request up to this size cannot exceed the limits, and is not counted. */
export const uncountedBytes = 2 * maxMessagesInRequest;

const tooManyMessages = () =>
  new Failure("validation_failed", {
    fields: [{ field: "messages", message: `must have at most ${maxMessagesInRequest} entries` }],
  });

/**
 * Counts the fields of a StreamInboundMessagesRequest on the wire, in chunks of any size: it skips length-delimited
 * values, except that it descends into messages and their timestamps. It refuses encodings that the decoder might read
 * differently, since the two would then count differently.
 */
export class FieldCount {
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
