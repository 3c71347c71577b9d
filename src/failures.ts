/**
 * The catalogue of every way a call can fail: its code, its HTTP status and gRPC code, and its message for people.
 * Clients read the code; no code branches on a message.
 */

/** HTTP status, gRPC code name as Connect spells it, message, and seconds after which a retry makes sense. */
interface FailureKind {
  readonly status: 400 | 401 | 403 | 404 | 409 | 422 | 429 | 503;
  readonly grpc:
    | "invalid_argument"
    | "unauthenticated"
    | "permission_denied"
    | "not_found"
    | "already_exists"
    | "failed_precondition"
    | "resource_exhausted"
    | "unavailable"
    | "internal";
  readonly message: string;
  readonly retryAfterSeconds?: number;
  /** Only administrative calls return this code. */
  readonly administrative?: true;
}

const catalogue = {
  malformed_request: {
    status: 400,
    grpc: "invalid_argument",
    message:
      "The request is not valid HTTP: send a valid request line, a Host header, at most 16 KiB of headers, and the complete request within 10 seconds.",
  },
  invalid_json: {
    status: 400,
    grpc: "invalid_argument",
    message: "The body is not JSON in UTF-8: send one JSON object, at least {}.",
  },
  unsupported_content_type: {
    status: 400,
    grpc: "invalid_argument",
    message: "The Content-Type is missing or is not JSON: send Content-Type: application/json.",
  },
  body_too_large: {
    status: 400,
    grpc: "invalid_argument",
    message: "The body is larger than 64 KiB: send the fields of this request only.",
  },
  idempotency_key_required: {
    status: 400,
    grpc: "invalid_argument",
    message:
      "The Idempotency-Key is missing: generate a new one for each verification attempt, such as a random UUID.",
  },
  idempotency_key_invalid: {
    status: 400,
    grpc: "invalid_argument",
    message:
      "The Idempotency-Key is not valid: send it once, with 8 to 128 characters, only A-Z a-z 0-9 _ . : and -",
  },
  missing_api_key: {
    status: 401,
    grpc: "unauthenticated",
    message: "The API key is missing: send Authorization: Bearer <API_KEY>.",
  },
  invalid_api_key: {
    status: 401,
    grpc: "unauthenticated",
    message:
      "The API key or token is not valid: it is unknown, mistyped, revoked or expired. Send an active one, complete, as it was shown when it was created.",
  },
  project_suspended: {
    status: 403,
    grpc: "permission_denied",
    message: "The project is suspended: its calls are refused until an administrator resumes it.",
  },
  insufficient_scope: {
    status: 403,
    grpc: "permission_denied",
    message:
      "This key or token is not allowed to do that: use an API key of the project or a token with scope read or write for verifications, the admin token for administration, or a token with scope ingest for inbound messages.",
  },
  verification_not_found: {
    status: 404,
    grpc: "not_found",
    message:
      "There is no such verification in this project and environment: check the id, and that the key belongs to the environment in which it was created.",
  },
  route_not_found: {
    status: 404,
    grpc: "not_found",
    message:
      "There is no such route: check method and path, such as POST /v1/verifications or GET /v1/verifications/{id}. GET /docs describes them all.",
  },
  not_found: {
    administrative: true,
    status: 404,
    grpc: "not_found",
    message: "Not found: check the id.",
  },
  idempotency_conflict: {
    status: 409,
    grpc: "already_exists",
    message: "This Idempotency-Key was used with a different body: repeat that body, or use a new key.",
  },
  verification_not_cancellable: {
    status: 409,
    grpc: "failed_precondition",
    message:
      "Only a pending verification can be cancelled, and this one is verified or expired: read it for its result.",
  },
  number_exists: {
    administrative: true,
    status: 409,
    grpc: "already_exists",
    message: "This number is already in use: remove it first.",
  },
  number_pending: {
    administrative: true,
    status: 409,
    grpc: "failed_precondition",
    message:
      "Verifications of the other environment are still pending on this number: add it once they have ended, at the latest one hour after its removal.",
  },
  too_many_api_keys: {
    administrative: true,
    status: 409,
    grpc: "failed_precondition",
    message: "A project has at most 5 active keys in an environment: revoke one first.",
  },
  webhook_disabled: {
    administrative: true,
    status: 409,
    grpc: "failed_precondition",
    message: "The webhook is disabled: set it again, then resend the event.",
  },
  validation_failed: {
    status: 422,
    grpc: "invalid_argument",
    message: "The request has invalid fields: correct each field listed, and send it again.",
  },
  rate_limited: {
    status: 429,
    grpc: "resource_exhausted",
    message: "Too many calls: wait as many seconds as Retry-After says.",
  },
  usage_limit_exceeded: {
    status: 429,
    grpc: "resource_exhausted",
    message:
      "The project has used up its calls for this calendar month (Asia/Seoul): wait for the next one, or have the limit raised.",
  },
  no_receiving_number: {
    status: 503,
    grpc: "unavailable",
    message:
      "No receiving number has room for another verification: try again later. If it persists, an administrator must add a number to this environment.",
    retryAfterSeconds: 30,
  },
  service_unavailable: {
    status: 503,
    grpc: "unavailable",
    message:
      "The service is temporarily unavailable: try again, repeating a creation with the same Idempotency-Key.",
    retryAfterSeconds: 1,
  },
  internal_error: {
    status: 503,
    grpc: "internal",
    message:
      "The service failed to process this call: try again, repeating a creation with the same Idempotency-Key.",
    retryAfterSeconds: 5,
  },
} as const satisfies Record<string, FailureKind>;

export type FailureCode = keyof typeof catalogue;

/** The codes that a merchant can receive: the catalogue without the administrative ones. */
export type ContractCode = {
  [Code in FailureCode]: (typeof catalogue)[Code] extends { administrative: true } ? never : Code;
}[FailureCode];

export const failureCodes = Object.keys(catalogue) as FailureCode[];

export const contractCodes = failureCodes.filter(
  (code): code is ContractCode => !("administrative" in catalogue[code]),
);

/** What is wrong with one field of a request, in the request's own field names. */
export interface FieldViolation {
  readonly field: string;
  readonly message: string;
}

/** Keeps the first violation of each field: a field can break two rules at once. */
function oneForEachField(violations: readonly FieldViolation[]): FieldViolation[] {
  const first = new Map<string, FieldViolation>();
  for (const violation of violations) {
    if (!first.has(violation.field)) first.set(violation.field, violation);
  }
  return [...first.values()];
}

/** Values of the IETF fields RateLimit-Policy, `"create";q=60;w=60`, and RateLimit, `"create";r=12;t=30`. */
export interface RateLimitState {
  readonly policy: string;
  readonly state: string;
}

interface FailureDetails {
  readonly fields?: readonly FieldViolation[];
  readonly retryAfterSeconds?: number | undefined;
  readonly rateLimit?: RateLimitState;
  readonly message?: string;
  readonly cause?: unknown;
}

/** A refusal that is reported to the caller. Anything else that is thrown is an internal fault. */
export class Failure extends Error {
  readonly code: FailureCode;

  /** At most one violation per field. */
  readonly fields: readonly FieldViolation[];
  readonly retryAfterSeconds: number | undefined;

  /** With rate_limited: the rate limit that was exceeded. */
  readonly rateLimit: RateLimitState | undefined;

  constructor(code: FailureCode, details: FailureDetails = {}) {
    const kind: FailureKind = catalogue[code];
    super(details.message ?? kind.message, { cause: details.cause });
    this.name = "Failure";
    this.code = code;
    this.fields = details.fields === undefined ? [] : oneForEachField(details.fields);
    this.rateLimit = details.rateLimit;
    this.retryAfterSeconds = details.retryAfterSeconds ?? kind.retryAfterSeconds;
  }

  get status(): FailureKind["status"] {
    return catalogue[this.code].status;
  }

  get grpc(): FailureKind["grpc"] {
    return catalogue[this.code].grpc;
  }
}

/** The stream from which a request's body is read. */
interface Incoming {
  readonly destroyed: boolean;
  readonly complete: boolean;
}

/** Whether the client disconnected before its request was complete: there is nobody to answer. */
export function isGone({ destroyed, complete }: Incoming): boolean {
  return destroyed && !complete;
}

/**
 * Whether reading the body failed because the client disconnected. ECONNRESET alone may come from a database
 * connection: that is a fault.
 */
export function isCutOff(thrown: unknown, request: Incoming): boolean {
  return (thrown as { readonly code?: unknown }).code === "ECONNRESET" && isGone(request);
}

/** The failure to report to the caller for anything that was thrown. */
export function asFailure(thrown: unknown): Failure {
  return thrown instanceof Failure ? thrown : new Failure("internal_error", { cause: thrown });
}
