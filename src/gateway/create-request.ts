/** Maps a merchant's request to create a verification to the core's message. */

import { create } from "@bufbuild/protobuf";
import type { FastifyRequest } from "fastify";
import type { FieldViolation } from "../failures.ts";
import {
  type CreateVerificationRequest,
  CreateVerificationRequestSchema,
  VerificationMode,
} from "../gen/proto/phoneproof/v1/verification_pb.ts";
import { createVerificationBody } from "./schemas.ts";

/** A body that has passed `createVerificationBody`. */
export interface CreateVerificationBody {
  readonly mode?: "discover" | "match";
  readonly expected_phone?: string | null;
  readonly client_reference?: string;
  readonly state?: string;
  readonly parent_origin?: string | null;
  readonly return_url?: string | null;
}

const fields = Object.keys(createVerificationBody.properties) as (keyof CreateVerificationBody)[];
const fieldNames = fields.join(", ");

/**
 * Unknown fields whose message lists the known ones. A body has room for thousands: with the list in each message, the
 * response would be twenty times as long.
 */
const listedFields = 5;

const none: readonly FieldViolation[] = [];

type ValidationError = NonNullable<NonNullable<FastifyRequest["validationError"]>["validation"]>[number];

/** Leaves out the fields that `violations` names: their values are not of their types. */
export function toCreateVerificationRequest(
  idempotencyKey: string,
  body: CreateVerificationBody,
  violations: readonly FieldViolation[],
): CreateVerificationRequest {
  const message = create(CreateVerificationRequestSchema);
  message.idempotencyKey = idempotencyKey;
  const sent = violations.length === 0 ? body : withoutViolations(body, violations);
  if (sent.mode !== undefined) {
    message.mode = sent.mode === "match" ? VerificationMode.MATCH : VerificationMode.DISCOVER;
  }
  if (sent.client_reference !== undefined) message.clientReference = sent.client_reference;
  if (sent.state !== undefined) message.state = sent.state;
  // An explicit null means the default, as absence does.
  if (typeof sent.expected_phone === "string") message.expectedPhone = sent.expected_phone;
  if (typeof sent.parent_origin === "string") message.parentOrigin = sent.parent_origin;
  if (typeof sent.return_url === "string") message.returnUrl = sent.return_url;
  return message;
}

/** The schema's errors as violations, in the body's own field names. */
export function toViolations(errors: readonly ValidationError[] | undefined): readonly FieldViolation[] {
  if (errors === undefined) return none;
  let unknown = 0;
  return errors.map((error) => {
    if (error.keyword === "additionalProperties") unknown++;
    return { field: fieldOf(error), message: messageOf(error, unknown) };
  });
}

function withoutViolations(
  body: CreateVerificationBody,
  violations: readonly FieldViolation[],
): CreateVerificationBody {
  if (typeof body !== "object" || body === null || Array.isArray(body)) return {};
  // Not over the body's own fields, of which there may be thousands.
  const sound = fields.filter(
    (name) => Object.hasOwn(body, name) && !violations.some(({ field }) => field === name),
  );
  return Object.fromEntries(sound.map((name) => [name, body[name]]));
}

function fieldOf(error: ValidationError): string {
  if (error.keyword === "additionalProperties") return String(error.params.additionalProperty);
  // The schema is flat and its names need no JSON Pointer escapes.
  return error.instancePath === "" ? "body" : error.instancePath.slice(1);
}

function messageOf(error: ValidationError, unknownSoFar: number): string {
  switch (error.keyword) {
    case "additionalProperties":
      return unknownSoFar > listedFields
        ? "is not a field of this request"
        : `is not a field of this request: leave it out; the valid fields are ${fieldNames}`;
    case "enum":
      return `must be one of ${[error.params.allowedValues].flat().join(", ")}`;
    case "maxLength":
      return `must be at most ${error.params.limit} characters`;
    case "type":
      return `must be ${[error.params.type].flat().map(withArticle).join(" or ")}`;
    default:
      return "is not valid";
  }
}

function withArticle(type: unknown): string {
  return type === "null" ? "null" : type === "object" ? "a JSON object" : `a ${type}`;
}
