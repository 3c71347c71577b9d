/** A verification, the ways it can change, and what the core needs of the storage that keeps it. */

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
  /** When the database looked. */
  readonly serverTime: number;
}

/** The first answer to a creation, the same at every replay. */
export interface CreatedVerification {
  readonly verification: Verification;
  readonly verificationUrl: string;
  readonly destination: string;
  readonly smsText: string;
}

/** What a verification is to be, checked and complete. */
export interface NewVerification {
  readonly id: string;
  readonly projectId: string;
  readonly environment: Environment;
  readonly idempotencyKey: string;
  /** SHA-256 of the request as sent, defaults filled in; hexadecimal. */
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

/** The destination of a creation for which there is no number: it can only repeat an answer, never create. */
export const nowhere = "";

export type CreationOutcome =
  | { readonly kind: "created" | "replayed"; readonly created: CreatedVerification }
  | { readonly kind: "conflict" }
  | { readonly kind: "code_taken" };

/** What an operation found, and how the call was charged; `usage` is undefined where nothing was to be. */
export interface Charged<T> {
  readonly usage: UsageCount | undefined;
  readonly value: T;
}

/** Which verification is meant, and within which bounds the caller may see it. Null: any. */
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
  /** Milliseconds since the epoch: at or after, before. */
  readonly createdFrom: number | null;
  readonly createdBefore: number | null;
  /** Only those older than this id; null: from the newest. */
  readonly before: string | null;
  readonly limit: number;
}

/** Perhaps short or empty, and yet not the last: only so many are looked at for one. */
export interface VerificationPage {
  readonly verifications: readonly Verification[];
  /** The id after which to go on; null: there are no more. */
  readonly after: string | null;
}

/**
 * The verifications as the database keeps them. `chargeTo` is the project whose usage counts the call, null
 * for callers that are not counted; a call over the limit is refused with usage_limit_exceeded and has no
 * effect. Every method answers by the database's clock, and no answer says pending past the expiry.
 */
export interface Verifications {
  create(verification: NewVerification, chargeTo: string | null): Promise<Charged<CreationOutcome>>;
  /** Whether an idempotency key has been answered, and until when the project has no calls left; null: it has. Charges nothing. */
  peekCreation(
    request: Pick<NewVerification, "projectId" | "environment" | "idempotencyKey">,
  ): Promise<{ readonly known: boolean; readonly exhaustedForSeconds: number | null }>;
  find(lookup: VerificationLookup, chargeTo: string | null): Promise<Charged<Verification | null>>;
  /** Cancels it if it is pending; answers what it is now. */
  cancel(lookup: VerificationLookup, chargeTo: string | null): Promise<Charged<Verification | null>>;
  /** Charges nothing. Only a few lists are made at once; one that waits for too long is refused with service_unavailable. */
  list(filter: VerificationFilter): Promise<VerificationPage>;
  /** Whether a call would only be told to come again. Takes no time. */
  isOverloaded(operation: "create" | "read" | "cancel"): boolean;
}

export function isTerminal(status: VerificationStatus): boolean {
  return status !== "pending";
}
