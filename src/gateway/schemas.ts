/**
 * The v1 contract's bodies as JSON Schema: requests are validated against them, responses serialised by them, and
 * documents made from them.
 */

/** Body of a creation. Lengths are code points, as the core counts them. */
export const createVerificationBody = {
  type: "object",
  additionalProperties: false,
  properties: {
    mode: {
      type: "string",
      enum: ["discover", "match"],
      default: "discover",
      description:
        "discover: find out which phone the user holds. match: check whether the user holds expected_phone.",
    },
    expected_phone: {
      type: ["string", "null"],
      maxLength: 32,
      default: null,
      description: "The 010 mobile number to compare with. Required in mode match, ignored in discover.",
    },
    client_reference: {
      type: "string",
      maxLength: 160,
      default: "",
      description: "Your identifier of this attempt; returned unchanged.",
    },
    state: {
      type: "string",
      maxLength: 256,
      default: "",
      description: "A random value that links the result to your session; returned unchanged.",
    },
    parent_origin: {
      type: ["string", "null"],
      maxLength: 2048,
      default: null,
      description: "The origin that the window notifies. Must equal the one registered for the project.",
    },
    return_url: {
      type: ["string", "null"],
      maxLength: 2048,
      default: null,
      description: "The URL that the window returns to. Must equal the one registered for the project.",
    },
  },
} as const;

const timestamp = {
  type: "string",
  format: "date-time",
  description: "UTC with milliseconds, 2026-11-21T06:41:00.123Z",
} as const;

const verificationProperties = {
  id: { type: "string", description: "Opaque; store it with your attempt." },
  status: { type: "string", enum: ["pending", "verified", "expired", "cancelled"] },
  environment: { type: "string", enum: ["test", "live"] },
  mode: { type: "string", enum: ["discover", "match"] },
  phone: {
    type: ["string", "null"],
    description: "The verified phone, 01012345678; null until verified, and after its erasure.",
  },
  carrier: {
    type: ["string", "null"],
    enum: ["SKT", "KT", "LGU+", null],
    description: "The sender's network, as reported with the matching SMS; null if unknown.",
  },
  client_reference: { type: "string" },
  state: { type: "string" },
  created_at: timestamp,
  expires_at: timestamp,
  verified_at: { ...timestamp, type: ["string", "null"] },
  server_time: timestamp,
} as const;

const creationProperties = {
  ...verificationProperties,
  verification_url: {
    type: "string",
    description: "The URL of the verification window; it contains a secret.",
  },
  destination: { type: "string", description: "The number to send the SMS to." },
  sms_text: { type: "string", description: "The complete text to send." },
} as const;

/** Answer to a creation. */
export const createdVerification = {
  type: "object",
  required: Object.keys(creationProperties),
  properties: creationProperties,
};

/**
 * Answer to a read or a cancel. The contract does not require `carrier`, and neither does openapi.json; here it is
 * required, since the serialiser puts optional properties last.
 */
export const verificationResult = {
  type: "object",
  required: Object.keys(verificationProperties),
  properties: verificationProperties,
};

/** Answer to any call that failed. */
export const apiError = {
  type: "object",
  required: ["error"],
  properties: {
    error: {
      type: "object",
      required: ["code", "message"],
      properties: {
        code: { type: "string", description: "For programs to branch on." },
        message: { type: "string", description: "For people to read; may change." },
        request_id: { type: "string", description: "Same as the header X-Request-ID." },
        fields: {
          type: "array",
          description: "With 422: every invalid field, one entry each.",
          items: {
            type: "object",
            required: ["field", "message"],
            properties: { field: { type: "string" }, message: { type: "string" } },
          },
        },
      },
    },
  },
} as const;
