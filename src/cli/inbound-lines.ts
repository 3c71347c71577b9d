/** Reads newline-delimited JSON as inbound messages, in bounded memory for input of any size. */

import { isUtf8 } from "node:buffer";
import { create } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { inboundLimits } from "../core/inbound-message.ts";
import { type InboundMessage, InboundMessageSchema } from "../gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { parseRfc3339 } from "./option-values.ts";

export interface InboundLine {
  /** Line number from 1; blank lines count. */
  readonly number: number;
  /** Bytes of the input up to the end of this line, line break included. */
  readonly endsAt: number;
  /** Bytes of the line without its line break. */
  readonly size: number;
  /** The message; undefined if the line is not a message, and `problem` then says why. */
  readonly message: InboundMessage | undefined;
  readonly problem: string;
}

/** The longest valid message takes some 30 KB with every character escaped; a longer line cannot be a message. */
const longestLine = 1024 * 1024;

const newline = 0x0a;

/**
 * Yields the complete lines of each chunk of the input together, as soon as they arrive. Blank lines are skipped. `macOf`: a
 * message authentication code in hexadecimal, with the sender's key, for the ids of messages without one.
 */
export async function* inboundLines(
  input: AsyncIterable<Buffer>,
  macOf: (text: string) => string,
): AsyncGenerator<InboundLine[]> {
  let number = 0;
  let endsAt = 0;
  let started: Buffer[] = [];
  let startedSize = 0;

  const take = (tail: Buffer, lineBreak: number): InboundLine | undefined => {
    const size = startedSize + tail.length;
    number += 1;
    endsAt += size + lineBreak;
    const bytes = started.length === 0 ? tail : Buffer.concat([...started, tail]);
    started = [];
    startedSize = 0;
    if (size > longestLine) {
      return { number, endsAt, size, message: undefined, problem: "longer than 1 MiB" };
    }
    return readLine(bytes, { number, endsAt, size }, macOf);
  };

  for await (const chunk of input) {
    const lines: InboundLine[] = [];
    let from = 0;
    for (let to = chunk.indexOf(newline); to !== -1; to = chunk.indexOf(newline, from)) {
      const line = take(chunk.subarray(from, to), 1);
      if (line !== undefined) lines.push(line);
      from = to + 1;
    }
    const rest = chunk.subarray(from);
    // Once a line is too long, only its length is still needed.
    if (startedSize <= longestLine) started.push(rest);
    startedSize += rest.length;
    if (lines.length > 0) yield lines;
  }
  if (startedSize > 0) {
    const line = take(Buffer.alloc(0), 0);
    if (line !== undefined) yield [line];
  }
}

/** Ignores a byte order mark, which not only the first line has if files were concatenated. */
const decoder = new TextDecoder();

function readLine(
  bytes: Buffer,
  where: { number: number; endsAt: number; size: number },
  macOf: (text: string) => string,
): InboundLine | undefined {
  if (!isUtf8(bytes)) return { ...where, message: undefined, problem: "not UTF-8" };
  const text = decoder.decode(bytes);
  if (text.trim() === "") return undefined;
  try {
    return { ...where, message: readMessage(text, where.number, macOf), problem: "" };
  } catch (error) {
    if (error instanceof UnreadableLine) return { ...where, message: undefined, problem: error.message };
    throw error;
  }
}

class UnreadableLine extends Error {}

/**
 * Sends a missing field as empty: the service answers INVALID. A field of another type or with invalid Unicode cannot be sent.
 */
function readMessage(text: string, lineNumber: number, macOf: (text: string) => string): InboundMessage {
  const value = parseObject(text);
  refuseMisspelled(value);
  const field = (name: string): string => {
    const given = Object.hasOwn(value, name) ? value[name] : undefined;
    if (given === undefined || given === null) return "";
    if (typeof given !== "string") throw new UnreadableLine(`${name} is not a string`);
    if (!given.isWellFormed()) throw new UnreadableLine(`${name} contains a lone surrogate`);
    return given;
  };
  const message = {
    from: field("from"),
    to: field("to"),
    text: field("text"),
    carrier: field("carrier"),
  };
  const receivedAt = field("received_at");
  const date = receivedAt === "" ? undefined : parseRfc3339(receivedAt);
  if (receivedAt !== "" && date === undefined) {
    throw new UnreadableLine("received_at is not an RFC 3339 time with a time zone");
  }
  const messageId = field("message_id");
  // The service shortens an id this long in its receipt, so the receipt could not be matched to its message.
  if ([...messageId].length > inboundLimits.messageId) {
    throw new UnreadableLine(`message_id is longer than ${inboundLimits.messageId} characters`);
  }
  return create(InboundMessageSchema, {
    messageId: messageId || derivedId(lineNumber, [...Object.values(message), receivedAt], macOf),
    ...message,
    receivedAt: date && timestampFromDate(date),
  });
}

const memberNames = ["message_id", "from", "to", "text", "carrier", "received_at"] as const;

/** Lower case, without word separators. */
const normalizeName = (name: string) => name.toLowerCase().replace(/[_\s-]/g, "");

const plainNames = new Map<string, string>(memberNames.map((name) => [normalizeName(name), name]));

/**
 * Unknown members are ignored, except a misspelling of a known one. If `messageId` were ignored, the id would be derived from
 * the line number, and the same message on another line would count as a new one.
 */
function refuseMisspelled(value: { readonly [name: string]: unknown }): void {
  for (const name in value) {
    const meant = plainNames.get(normalizeName(name));
    if (meant !== undefined && meant !== name && !Object.hasOwn(value, meant)) {
      throw new UnreadableLine(`${JSON.stringify(name)} must be spelled ${meant}`);
    }
  }
}

function parseObject(text: string): { readonly [name: string]: unknown } {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new UnreadableLine("not JSON");
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new UnreadableLine("not a JSON object");
  }
  return value as { readonly [name: string]: unknown };
}

/**
 * The same id for the same line of the same input with the same token, so that sending it again is a duplicate and not a new
 * message. Ids are kept after an erasure, and a plain digest would reveal the sender to anybody who tries all numbers.
 */
function derivedId(lineNumber: number, content: readonly string[], macOf: (text: string) => string): string {
  return `cli-${macOf(JSON.stringify([lineNumber, ...content])).slice(0, 32)}`;
}
