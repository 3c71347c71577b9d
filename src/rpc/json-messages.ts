/** Names the invalid fields of a JSON message. Connect's own error text would repeat what was sent. */

import {
  type DescField,
  type DescMessage,
  type DescMethodUnary,
  type DescService,
  fromJson,
  type JsonObject,
  type JsonValue,
  ScalarType,
} from "@bufbuild/protobuf";
import { DurationSchema, TimestampSchema } from "@bufbuild/protobuf/wkt";
import type { ConnectRouter, MethodImpl } from "@connectrpc/connect";
import { Failure, type FieldViolation } from "../failures.ts";
import { malformedMessage, toConnectError } from "./message-errors.ts";

/** If unknown fields were ignored, a mistyped filter, mode or restriction would mean all, or the default. */
export const strictJson = { ignoreUnknownFields: false };

/** A refusal travels in trailers, of which many clients accept 8 KiB; a message has room for thousands of unknown fields. */
const listedFields = 10;
const longestName = 64;

/** Wraps the router for services whose refusals name fields. */
export function namingFields(router: ConnectRouter): ConnectRouter {
  const naming = {
    ...router,
    service(service: DescService, implementation: Readonly<Record<string, MethodImpl<DescMethodUnary>>>) {
      for (const method of service.methods as readonly DescMethodUnary[]) {
        const implement = implementation[method.localName];
        if (implement === undefined) throw new Error(`${method.name} has no implementation`);
        router.rpc(method, implement, optionsFor(method.input));
      }
      return naming;
    },
  } as ConnectRouter;
  return naming;
}

/** For a method with options of its own, Connect enables all protocols again: so gRPC-Web is disabled here, too. */
const optionsFor = (message: DescMessage) => ({ grpcWeb: false, jsonOptions: jsonOptionsOf(message) });

/** If there is a decoder in the options, Connect passes it a message's bytes, and parses the text it returns. */
function jsonOptionsOf(message: DescMessage) {
  const utf8 = new TextDecoder("utf-8", { fatal: true });
  const textOf = (bytes: Uint8Array) => {
    try {
      return utf8.decode(bytes);
    } catch {
      throw toConnectError(malformedMessage());
    }
  };
  return {
    ...strictJson,
    textDecoder: {
      decode(bytes: Uint8Array): string {
        const text = textOf(bytes);
        const fields = violationsIn(message, text);
        if (fields.length > 0) throw toConnectError(new Failure("validation_failed", { fields }));
        return text;
      },
    },
  };
}

/** Empty for a text that is no JSON object, which is refused as such. */
function violationsIn(message: DescMessage, text: string): FieldViolation[] {
  const json = parsed(text);
  if (typeof json !== "object" || json === null || Array.isArray(json)) return [];
  const violations: FieldViolation[] = [];
  const unknown: string[] = [];
  for (const [name, value] of Object.entries(json)) {
    const field = message.fields.find((known) => known.name === name || known.jsonName === name);
    if (field === undefined) unknown.push(name);
    // One by one: parsing the whole message stops at the first error, and does not always name the field.
    else if (!isReadable(message, { [name]: value }) || isMisread(field, value)) {
      violations.push({ field: field.name, message: `must be ${expectedOf(field, value)}` });
    }
  }
  return [...violations, ...unknownFields(message, unknown)];
}

function parsed(text: string): JsonValue | undefined {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

function isReadable(message: DescMessage, json: JsonObject): boolean {
  try {
    fromJson(message, json, strictJson);
    return true;
  } catch {
    return false;
  }
}

/**
 * Whether the library reads the value as another one instead of refusing it: 2026-02-30 as 2 March, 24:00 as the next day, and
 * `5s30m` as 5 seconds.
 */
function isMisread({ message }: DescField, value: JsonValue): boolean {
  if (typeof value !== "string") return false;
  if (message?.typeName === DurationSchema.typeName) return !/^-?\d+(?:\.\d{1,9})?s$/.test(value);
  if (message?.typeName !== TimestampSchema.typeName) return false;
  const day = value.slice(0, 10);
  return value.slice(11, 13) === "24" || !new Date(day).toISOString().startsWith(day);
}

function unknownFields(message: DescMessage, names: readonly string[]): FieldViolation[] {
  const known = message.fields.map(({ name }) => name).join(", ");
  const unlisted = names.length - listedFields;
  return names.slice(0, listedFields).map((name, index) => {
    const advice = index === 0 && known !== "" ? `: leave it out; the valid fields are ${known}` : "";
    const others = unlisted > 0 && index === listedFields - 1 ? `, nor are ${unlisted} others` : "";
    return {
      field: name.slice(0, longestName).toWellFormed(),
      message: `is not a field of this request${others}${advice}`,
    };
  });
}

const scalars: Partial<Record<ScalarType, string>> = {
  [ScalarType.STRING]: "a string",
  [ScalarType.INT32]: "a whole number of 32 bits",
  [ScalarType.INT64]: "a whole number of 64 bits",
};

const messages: Readonly<Record<string, string>> = {
  [TimestampSchema.typeName]: "a time, such as 2026-11-21T06:41:00.123Z",
  [DurationSchema.typeName]: "a duration in seconds, such as 259200s",
};

/** Looks at no more of the value than its type: the value may be a phone or a secret. */
function expectedOf(field: DescField, value: JsonValue): string {
  if (field.scalar === ScalarType.STRING && typeof value === "string") {
    return "well-formed Unicode: it contains a lone surrogate";
  }
  return field.fieldKind === "list" ? `a list, each entry ${nameOf(field)}` : nameOf(field);
}

function nameOf({ scalar, enum: enumeration, message }: DescField): string {
  if (scalar !== undefined) return scalars[scalar] ?? "of another type";
  // Zero means unspecified.
  const values = enumeration?.values.filter(({ number }) => number !== 0);
  if (values) return `one of ${values.map(({ name }) => name).join(", ")}`;
  return messages[message?.typeName ?? ""] ?? "a JSON object";
}
