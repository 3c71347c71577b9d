/** A verification, its possible transitions, and the storage interface the core needs for it. */

import type { Carrier } from "./carrier.ts";
import type { CodeFormat, Environment } from "./project.ts";
import type { UsageCount } from "./usage.ts";

export type VerificationMode = "discover" | "match";

export type VerificationStatus = "pending" | "verified" | "expired" | "cancelled";

/** Times are milliseconds since the epoch by the database's clock. Ids are UUIDs. */
export interface Verification {
  readonly id: string;
  readonly projectId: string;
  readonly environment: Environment;
  readonly mode: VerificationMode;
  readonly status: VerificationStatus;
  readonly phone: string | null;
  readonly carrier: Carrier | null;
  readonly clientReference: string;
  readonly state: string;
  readonly createdAt: number;
  readonly expiresAt: number;
  readonly verifiedAt: number | null;
  /** The database's time when it read this row. */
  readonly serverTime: number;
}

/** The original response to a creation; every replay returns the same. */
export interface CreatedVerification {
  readonly verification: Verification;
  readonly verificationUrl: string;
  readonly destination: string;
  readonly smsText: string;
}

/** A verification to create, validated and with all defaults filled in. */
export interface NewVerification {
  readonly id: string;
  readonly projectId: string;
  readonly environment: Environment;
  readonly idempotencyKey: string;
  /** SHA-256 of the request as sent, with defaults filled in; hexadecimal. */
  readonly requestDigest: string;
  readonly mode: VerificationMode;
  readonly expectedPhone: string | null;
  readonly clientReference: string;
  readonly state: string;
  readonly parentOrigin: string | null;
  readonly returnUrl: string | null;
  readonly validitySeconds: number;
  readonly destination: string;
  readonly code: string;
  readonly codeFormat: CodeFormat;
  readonly smsText: string;
  readonly verificationUrl: string;
  /** SHA-256 of the token that the URL ends in; hexadecimal. */
  readonly windowDigest: string;
}

/** Destination of a creation for which there is no receiving number: such a creation can only replay an earlier response. */
export const noDestination = "";

export type CreationOutcome =
  | { readonly kind: "created" | "replayed"; readonly created: CreatedVerification }
  | { readonly kind: "conflict" }
  | RepeatableOutcome;

/** Why nothing was created: a corrected request may be. */
export type RepeatableOutcome =
  | { readonly kind: "code_taken" }
  /** Its destination does not serve its environment any more, or is `noDestination`. */
  | { readonly kind: "number_removed" }
  /** Its id is not of `now`, the database's time in milliseconds since the epoch: the clock was set. */
  | { readonly kind: "id_outdated"; readonly now: number };

/** A result and the project's usage after the call was charged; `usage` is undefined if there was nothing to charge. */
export interface Charged<T> {
  readonly usage: UsageCount | undefined;
  readonly value: T;
}

/** Identifies a verification and the bounds within which the caller may see it. Null: unbounded. */
export interface VerificationLookup {
  readonly id: string;
  readonly projectId: string | null;
  readonly environment: Environment | null;
}

export interface VerificationFilter {
  readonly projectId: string;
  readonly environment: Environment | null;
  readonly statuses: readonly VerificationStatus[];
  readonly clientReference: string | null;
  readonly phone: string | null;
  /** Milliseconds since the epoch: `createdFrom` inclusive, `createdBefore` exclusive; null: unbounded. */
  readonly createdFrom: number | null;
  readonly createdBefore: number | null;
  /** Only those older than this id; null: from the newest. */
  readonly before: string | null;
  readonly limit: number;
}

/** May be short or empty without being the last page, because the number of rows examined per page is limited. */
export interface VerificationPage {
  readonly verifications: readonly Verification[];
  /** The id after which the next page starts; null if there are no more. */
  readonly after: string | null;
}

/**
 * The verifications as the database keeps them. `chargeTo` is the project whose usage the call is charged to, null for
 * callers that are not charged. A call over the usage limit is refused with usage_limit_exceeded and has no effect.
 * Every method goes by the database's clock, and none returns `pending` for a verification past its expiry.
 */
export interface Verifications {
  create(verification: NewVerification, chargeTo: string | null): Promise<Charged<CreationOutcome>>;
  /**
   * Looks up an idempotency key without charging. `known`: a response to it is stored. `exhaustedForSeconds`: how long
   * until the project may make calls again; null if it has calls left.
   */
  peekCreation(
    request: Pick<NewVerification, "projectId" | "environment" | "idempotencyKey">,
  ): Promise<{ readonly known: boolean; readonly exhaustedForSeconds: number | null }>;
  find(lookup: VerificationLookup, chargeTo: string | null): Promise<Charged<Verification | null>>;
  /** Cancels the verification if it is pending; returns its state afterwards. */
  cancel(lookup: VerificationLookup, chargeTo: string | null): Promise<Charged<Verification | null>>;
  /** Charges nothing. Few lists run concurrently; one that waits too long for its turn is refused with service_unavailable. */
  list(filter: VerificationFilter): Promise<VerificationPage>;
  /** Whether a call would be refused for overload. Synchronous and cheap. */
  isOverloaded(operation: "create" | "read" | "cancel"): boolean;
}

export function isTerminal(status: VerificationStatus): boolean {
  return status !== "pending";
}
