/** The v1 contract as an OpenAPI 3.1 document, made of the schemas that requests and responses use. */

import { contractCodes, Failure, type FailureCode } from "../failures.ts";
import type { Deprecation } from "./deprecations.ts";
import { apiError, createdVerification, createVerificationBody, verificationResult } from "./schemas.ts";

const exampleId = "vrf_01kaex4mpyf2xbtyt1s6vdr4e9";
const exampleRequestId = "req_01kaex4mpyf2xbtyt1s6vdr4e9";

const pendingExample = {
  id: exampleId,
  status: "pending",
  environment: "live",
  mode: "discover",
  phone: null,
  carrier: null,
  client_reference: "signup-4711",
  state: "b9f1c2",
  created_at: "2026-11-21T06:41:00.123Z",
  expires_at: "2026-11-21T06:51:00.123Z",
  verified_at: null,
  server_time: "2026-11-21T06:41:00.123Z",
} as const;

const createdExample = {
  ...pendingExample,
  verification_url: "https://phoneproof.example/v/3q2-796tvu_erb7v",
  destination: "0200000001",
  sms_text: "[Shop] 12345678",
} as const;

const verifiedExample = {
  ...pendingExample,
  status: "verified",
  phone: "01012345678",
  carrier: "SKT",
  verified_at: "2026-11-21T06:41:21.456Z",
  server_time: "2026-11-21T06:41:22.000Z",
} as const;

const cancelledExample = {
  ...pendingExample,
  status: "cancelled",
  server_time: "2026-11-21T06:41:22.000Z",
} as const;

/**
 * Null is an alternative here and not one of the values, as it is where answers are serialised: of a list of values with null
 * several generators make a type without it, or code that does not compile.
 */
const { description: carrierDescription, enum: carriers } = createdVerification.properties.carrier;
const carrierAlternatives = {
  description: carrierDescription,
  anyOf: [{ type: "string", enum: carriers.filter((carrier) => carrier !== null) }, { type: "null" }],
};

/** As events contain them: `server_time` is the instant of the transition. */
const eventExamples = {
  verified: { ...verifiedExample, server_time: verifiedExample.verified_at },
  expired: { ...pendingExample, status: "expired", server_time: "2026-11-21T06:51:00.377Z" },
  cancelled: cancelledExample,
} as const;

export function eventExample(kind: keyof typeof eventExamples) {
  const data = eventExamples[kind];
  return { type: `verification.${kind}`, timestamp: data.server_time, data };
}

const text = (description: string, pattern?: string) => ({
  description,
  schema: { type: "string", ...(pattern === undefined ? {} : { pattern }) },
});

const headers = {
  "X-Request-ID": {
    ...text(
      "Identifies the request, also in the error object and in the service's log.",
      "^req_[0-9a-z]{26}$",
    ),
    required: true,
  },
  "X-Usage-Calls": text(
    "The project's calls in this calendar month (Asia/Seoul), this one included. Absent if the call was not counted.",
    "^[0-9]+$",
  ),
  "X-Usage-Limit": text(
    "The month's limit, or `unlimited`. Absent if the call was not counted.",
    "^([0-9]+|unlimited)$",
  ),
  "RateLimit-Policy": text('The rate limit for this kind of call: `"create";q=6000;w=60`.'),
  RateLimit: text('What remains of the rate limit: `"create";r=5999;t=60`.'),
  Deprecation: text(
    "Sent if the call used something deprecated: since when, as `@` and seconds since 1970 (RFC 9745).",
    "^@[0-9]+$",
  ),
  Sunset: text("When it may stop working (RFC 8594). Absent while undecided."),
  Link: text('With Deprecation: a page that says what to use instead, `<…>; rel="deprecation"`.'),
  "Cache-Control": text("Always `no-store`: a verification changes, and it may hold a phone.", "^no-store$"),
  "Idempotent-Replayed": {
    description: "Whether this is the stored response to an earlier creation with this key.",
    required: true,
    schema: { type: "string", enum: ["true", "false"] },
  },
  "Retry-After": { ...text("Seconds to wait before trying again.", "^[1-9][0-9]*$"), required: true },
  "WWW-Authenticate": { ...text("The authentication scheme.", "^Bearer$"), required: true },
};

const headerRefs = (names: readonly (keyof typeof headers)[]) =>
  Object.fromEntries(names.map((name) => [name, { $ref: `#/components/headers/${name}` }]));

const everywhere = [
  "X-Request-ID",
  "X-Usage-Calls",
  "X-Usage-Limit",
  "RateLimit-Policy",
  "RateLimit",
  "Deprecation",
  "Sunset",
  "Link",
  "Cache-Control",
] as const;

const descriptions: Readonly<Record<number, string>> = {
  400: "The request is malformed.",
  401: "The API key is missing or not valid.",
  403: "The key is not allowed to do that, or its project is suspended.",
  404: "There is no such verification in this project and environment, or no such route.",
  409: "The request conflicts with an earlier request or with the verification's status.",
  422: "The request has invalid fields: `fields` lists each.",
  429: "Too many calls in this minute or in this month.",
  503: "The service is temporarily unavailable. A creation is safe to repeat with the same Idempotency-Key.",
};

type Operation = "create" | "read" | "cancel";

/** Codes that only some operations answer; all other codes apply to every operation. */
const onlyOf: Partial<Record<FailureCode, readonly Operation[]>> = {
  invalid_json: ["create"],
  unsupported_content_type: ["create"],
  body_too_large: ["create", "cancel"],
  idempotency_key_required: ["create"],
  idempotency_key_invalid: ["create"],
  idempotency_conflict: ["create"],
  validation_failed: ["create"],
  no_receiving_number: ["create"],
  verification_not_found: ["read", "cancel"],
  verification_not_cancellable: ["cancel"],
};

function errorResponses(operation: Operation) {
  return Object.fromEntries(
    Object.entries(descriptions).map(([status, description]) => {
      const codes = contractCodes.filter((code) => {
        return new Failure(code).status === Number(status) && (onlyOf[code]?.includes(operation) ?? true);
      });
      const extra: (keyof typeof headers)[] = [];
      if (status === "401") extra.push("WWW-Authenticate");
      if (status === "429" || status === "503") extra.push("Retry-After");
      const examples = Object.fromEntries(codes.map((code) => [code, { value: errorExample(code) }]));
      return [
        status,
        {
          description,
          headers: headerRefs([...everywhere, ...extra]),
          content: {
            "application/json": {
              schema: { $ref: "#/components/schemas/ApiError" },
              ...(codes.length === 0 ? {} : { examples }),
            },
          },
        },
      ];
    }),
  );
}

export function errorExample(code: FailureCode) {
  const { message } = new Failure(code);
  const error = { code, message, request_id: exampleRequestId };
  const fields = [{ field: "mode", message: "must be one of discover, match" }];
  return { error: code === "validation_failed" ? { ...error, fields } : error };
}

function answered(
  description: string,
  schema: string,
  example: object,
  names: readonly (keyof typeof headers)[],
) {
  return {
    description,
    headers: headerRefs(names),
    content: { "application/json": { schema: { $ref: `#/components/schemas/${schema}` }, example } },
  };
}

const idParameter = {
  name: "verification_id",
  in: "path",
  required: true,
  description: "The `id` that the creation returned.",
  schema: { type: "string" },
  example: exampleId,
} as const;

const webhookHeader = (name: string, description: string) => ({
  name,
  in: "header",
  required: true,
  description,
  schema: { type: "string" },
});

function webhook(type: keyof typeof eventExamples, summary: string) {
  return {
    post: {
      operationId: `verification${type[0]?.toUpperCase()}${type.slice(1)}`,
      tags: ["Webhooks"],
      summary,
      description:
        "Signed according to Standard Webhooks: verify the signature before anything else. An event may arrive more than once, with the same webhook-id. Events of different verifications may arrive in any order.",
      parameters: [
        webhookHeader("webhook-id", "The event's id, `evt_…`: the same in every attempt."),
        webhookHeader("webhook-timestamp", "When this attempt was made, in seconds since 1970."),
        webhookHeader(
          "webhook-signature",
          "`v1,` and the signature in base64; during a secret rotation several, separated by spaces.",
        ),
      ],
      requestBody: {
        required: true,
        content: {
          "application/json": {
            schema: { $ref: "#/components/schemas/WebhookEvent" },
            example: eventExample(type),
          },
        },
      },
      responses: {
        "2XX": { description: "Accepted. Anything else is retried, up to nine times." },
        "410": { description: "Gone: disables the webhook." },
      },
      security: [],
    },
  };
}

/** `serverUrl` is the address merchants reach the service at. */
export function openApiDocument(serverUrl: string, deprecations: readonly Deprecation[]): object {
  /** Marks an operation or a field that has an entry. */
  const mark = (method: Deprecation["method"], route: string, field?: string) =>
    deprecations.some((entry) => entry.method === method && entry.route === route && entry.field === field)
      ? { deprecated: true }
      : {};
  const creation = Object.entries(createVerificationBody.properties).map(([field, schema]) => [
    field,
    { ...schema, ...mark("POST", "/v1/verifications", field) },
  ]);
  return {
    openapi: "3.1.0",
    info: {
      title: "phoneproof",
      version: "1.0.0",
      summary:
        "Verifies that a person holds a phone: they send an SMS, and the sender number reported by the network is the proof.",
      description:
        "Your server creates a verification, shows its `destination` and `sms_text` (or opens `verification_url`), and reads it later. Server-side use only. Clients branch on `error.code`, never on a message.",
    },
    servers: [{ url: serverUrl }],
    security: [{ apiKey: [] }],
    tags: [
      { name: "Verifications", description: "Create, read and cancel." },
      { name: "Webhooks", description: "The events that your endpoint receives." },
    ],
    paths: {
      "/v1/verifications": {
        post: {
          operationId: "createVerification",
          ...mark("POST", "/v1/verifications"),
          tags: ["Verifications"],
          summary: "Create a verification",
          description:
            "If the response is lost, repeat the creation with the same Idempotency-Key and the same body: for 24 hours you get the first response again. A new attempt needs a new key.",
          parameters: [
            {
              name: "Idempotency-Key",
              in: "header",
              required: true,
              description: "Generated by you, new for each attempt, such as a random UUID.",
              schema: { type: "string", minLength: 8, maxLength: 128, pattern: "^[A-Za-z0-9_.:-]{8,128}$" },
              example: "5f0c6c1e-7d53-4a7b-9d0e-2f6f3c1d9a11",
            },
          ],
          requestBody: {
            required: true,
            content: {
              "application/json": {
                schema: { $ref: "#/components/schemas/CreateVerification" },
                examples: {
                  discover: { value: { client_reference: "signup-4711", state: "b9f1c2" } },
                  match: { value: { mode: "match", expected_phone: "01012345678" } },
                },
              },
            },
          },
          responses: {
            201: answered("Created.", "CreatedVerification", createdExample, [
              ...everywhere,
              "Idempotent-Replayed",
            ]),
            200: answered(
              "The stored response to the first creation with this key: the verification as it was then.",
              "CreatedVerification",
              createdExample,
              [...everywhere, "Idempotent-Replayed"],
            ),
            ...errorResponses("create"),
          },
        },
      },
      "/v1/verifications/{verification_id}": {
        get: {
          operationId: "readVerification",
          ...mark("GET", "/v1/verifications/:verification_id"),
          tags: ["Verifications"],
          summary: "Read a verification",
          parameters: [idParameter],
          responses: {
            200: answered(
              "The verification's current state.",
              "VerificationResult",
              verifiedExample,
              everywhere,
            ),
            ...errorResponses("read"),
          },
        },
      },
      "/v1/verifications/{verification_id}/cancel": {
        post: {
          operationId: "cancelVerification",
          ...mark("POST", "/v1/verifications/:verification_id/cancel"),
          tags: ["Verifications"],
          summary: "Cancel a verification",
          description:
            "Only a pending verification can be cancelled; cancelling a cancelled one changes nothing. No body is needed.",
          parameters: [idParameter],
          responses: {
            200: answered(
              "Cancelled, by this call or before.",
              "VerificationResult",
              cancelledExample,
              everywhere,
            ),
            ...errorResponses("cancel"),
          },
        },
      },
    },
    webhooks: {
      "verification.verified": webhook("verified", "The person holds the phone"),
      "verification.expired": webhook("expired", "No matching SMS arrived in time"),
      "verification.cancelled": webhook("cancelled", "The verification was cancelled"),
    },
    components: {
      securitySchemes: {
        apiKey: {
          type: "http",
          scheme: "bearer",
          description:
            "`pp_live_…` or `pp_test_…`: it determines the project and environment. Keep it on your server.",
        },
      },
      headers,
      schemas: {
        CreateVerification: { ...createVerificationBody, properties: Object.fromEntries(creation) },
        CreatedVerification: {
          ...createdVerification,
          properties: { ...createdVerification.properties, carrier: carrierAlternatives },
        },
        VerificationResult: {
          ...verificationResult,
          properties: { ...verificationResult.properties, carrier: carrierAlternatives },
          // The contract does not require it; this service always sends it.
          required: verificationResult.required.filter((name) => name !== "carrier"),
        },
        ApiError: apiError,
        WebhookEvent: {
          type: "object",
          required: ["type", "timestamp", "data"],
          properties: {
            type: {
              type: "string",
              enum: ["verification.verified", "verification.expired", "verification.cancelled"],
            },
            timestamp: {
              type: "string",
              format: "date-time",
              description: "When it happened: UTC with milliseconds.",
            },
            data: { $ref: "#/components/schemas/VerificationResult" },
          },
        },
      },
    },
  };
}
