/** All errors of this package, distinguished by `code`. */

/** What is wrong with one field of a creation. */
export interface FieldProblem {
  /** The field's name in the request. */
  readonly field: string;
  /** What the field must be, for people to read. */
  readonly message: string;
}

interface Refusal<Code extends string, Status extends number> {
  /** The value that programs branch on. */
  readonly code: Code;
  /** The HTTP status. */
  readonly status: Status;
  /** Identifies the request in the service's log: `req_…`. */
  readonly requestId: string | undefined;
}

interface RefusalForNow<Code extends string, Status extends number> extends Refusal<Code, Status> {
  /** Seconds after which to retry. */
  readonly retryAfterSeconds: number;
}

interface InvalidFields extends Refusal<"validation_failed", 422> {
  /** Every invalid field, once. */
  readonly fields: readonly FieldProblem[];
}

/** The service refused the call. Later versions of the service may add codes: keep a `default`. */
export type ServiceRefusal =
  | Refusal<
      | "malformed_request"
      | "invalid_json"
      | "unsupported_content_type"
      | "body_too_large"
      | "idempotency_key_required"
      | "idempotency_key_invalid",
      400
    >
  | Refusal<"missing_api_key" | "invalid_api_key", 401>
  | Refusal<"project_suspended" | "insufficient_scope", 403>
  | Refusal<"verification_not_found" | "route_not_found", 404>
  | Refusal<"idempotency_conflict" | "verification_not_cancellable", 409>
  | InvalidFields
  | RefusalForNow<"rate_limited" | "usage_limit_exceeded", 429>
  | RefusalForNow<"no_receiving_number" | "service_unavailable" | "internal_error", 503>;

/**
 * No complete answer from the service arrived in time: it is unreachable, too slow, or connections break. Or a proxy in front
 * of it reported such a failure.
 */
export interface NoAnswer {
  readonly code: "no_answer";
  /** The HTTP status of a proxy's answer, such as 504. */
  readonly status?: number | undefined;
  /** Seconds after which to retry, if a proxy answered. */
  readonly retryAfterSeconds?: number | undefined;
}

/** The answer does not come from this API: check `baseUrl` and any proxy in between. */
export interface UnexpectedAnswer {
  readonly code: "unexpected_answer";
  /** The HTTP status. */
  readonly status: number;
}

/** Your `signal` aborted the call; the signal's reason is the `cause`. */
export interface Aborted {
  readonly code: "aborted";
}

/** `waitUntilFinished` reached its `timeoutMs`; the verification may still be verified. */
export interface StillPending {
  readonly code: "still_pending";
}

/** The webhook was not sent by the service, was modified in transit, or is too old. Answer it with 401. */
export interface WebhookNotAuthentic {
  readonly code: "webhook_not_authentic";
}

interface Circumstances {
  /**
   * The idempotency key of a failed creation. With `no_answer`, `unexpected_answer`, `aborted`, `service_unavailable` and
   * `internal_error` the verification may have been created nevertheless. Create again with this key and the same body, and it
   * is created only once.
   */
  readonly idempotencyKey: string | undefined;
}

type Reason = ServiceRefusal | NoAnswer | UnexpectedAnswer | Aborted | StillPending | WebhookNotAuthentic;

/** The error of every function of this package, except for invalid arguments (`TypeError`). */
export type PhoneproofError = Error & Circumstances & Reason;

/** Distributes over the union, so that each reason keeps its own fields. */
type Details<R> = R extends unknown ? R & Partial<Circumstances> & { readonly cause?: unknown } : never;

/**
 * `error instanceof PhoneproofError` narrows to the union: then `switch (error.code)`. A class cannot implement a union type,
 * hence the cast. The class has the name too, because logs show it.
 */
export const PhoneproofError = class PhoneproofError extends Error {
  override readonly name = "PhoneproofError";

  constructor(message: string, details: Details<Reason>) {
    super(message, details);
    const { cause: _kept, ...rest } = details;
    Object.assign(this, rest);
  }
} as unknown as new (
  message: string,
  details: Details<Reason>,
) => PhoneproofError;
