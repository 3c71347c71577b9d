/** Everything that can go wrong, told apart by `code`. */

/** What is wrong with one field of a creation. */
export interface FieldProblem {
  /** The field's name in the request. */
  readonly field: string;
  /** What was expected, for people. */
  readonly message: string;
}

interface Refusal<Code extends string, Status extends number> {
  /** What programs branch on. */
  readonly code: Code;
  /** The HTTP status. */
  readonly status: Status;
  /** Names the request in the service's log: `req_…`. */
  readonly requestId: string | undefined;
}

interface RefusalForNow<Code extends string, Status extends number> extends Refusal<Code, Status> {
  /** Seconds after which to try again. */
  readonly retryAfterSeconds: number;
}

interface InvalidFields extends Refusal<"validation_failed", 422> {
  /** Every field that is wrong, once. */
  readonly fields: readonly FieldProblem[];
}

/** What the service refuses a call with. A later version of it may have further codes: keep a `default`. */
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
 * No whole answer of the service came in time: it cannot be reached, is too slow, or connections break. Or a proxy before
 * it has said so.
 */
export interface NoAnswer {
  readonly code: "no_answer";
  /** The HTTP status of what answered in the service's place, such as 504. */
  readonly status?: number | undefined;
  /** Seconds after which to try again, where something answered. */
  readonly retryAfterSeconds?: number | undefined;
}

/** What answered is not this API: look at `baseUrl` and at what stands between. */
export interface UnexpectedAnswer {
  readonly code: "unexpected_answer";
  /** The HTTP status. */
  readonly status: number;
}

/** Your `signal` gave the call up; its reason is the `cause`. */
export interface Aborted {
  readonly code: "aborted";
}

/** `waitUntilFinished` has waited for `timeoutMs`; the verification may still be verified. */
export interface StillPending {
  readonly code: "still_pending";
}

/** The webhook is not from the service, was changed on its way, or is too old. Answer it with 401. */
export interface WebhookNotAuthentic {
  readonly code: "webhook_not_authentic";
}

interface Circumstances {
  /**
   * The key of a creation that failed. With `no_answer`, `unexpected_answer`, `aborted`, `service_unavailable` and
   * `internal_error` it may have been made all the same: create again with this key and the same body, and it is made once.
   */
  readonly idempotencyKey: string | undefined;
}

type Reason = ServiceRefusal | NoAnswer | UnexpectedAnswer | Aborted | StillPending | WebhookNotAuthentic;

/** What every function of this package throws, but for wrong arguments (`TypeError`). */
export type PhoneproofError = Error & Circumstances & Reason;

/** Distributes over the union, so that each reason keeps what belongs to it. */
type Details<R> = R extends unknown ? R & Partial<Circumstances> & { readonly cause?: unknown } : never;

class ReasonedError extends Error {
  override readonly name = "PhoneproofError";

  constructor(message: string, details: Details<Reason>) {
    super(message, details);
    const { cause: _kept, ...rest } = details;
    Object.assign(this, rest);
  }
}

/**
 * `error instanceof PhoneproofError` narrows to the union: then `switch (error.code)`. A class cannot be a union, so this one
 * is told to construct it.
 */
export const PhoneproofError = ReasonedError as unknown as new (
  message: string,
  details: Details<Reason>,
) => PhoneproofError;
