/** Verifications as the v1 contract has them, field names included. */

/** Where a verification stands. Only `pending` ever changes. */
export type VerificationStatus = "pending" | "verified" | "expired" | "cancelled";

/** A network that reported a sender. */
export type Carrier = "SKT" | "KT" | "LGU+";

interface CreationFields {
  /** Your identifier of this attempt, at most 160 characters. Comes back as it was sent. */
  readonly client_reference?: string | undefined;
  /** A random value that links the result to the person's session, at most 256 characters. Comes back as it was sent. */
  readonly state?: string | undefined;
  /** The origin that the verification window notifies. Must equal the one registered for the project. */
  readonly parent_origin?: string | null | undefined;
  /** Where the verification window returns to. Must equal the URL registered for the project. */
  readonly return_url?: string | null | undefined;
}

/** Finds out which phone the person holds. */
export interface DiscoverVerification extends CreationFields {
  /** The default. */
  readonly mode?: "discover" | undefined;
  /** Ignored in this mode. */
  readonly expected_phone?: string | null | undefined;
}

/** Finds out whether the person holds the expected phone. */
export interface MatchVerification extends CreationFields {
  readonly mode: "match";
  /** The 010 mobile number to compare with: `01012345678`, `010-1234-5678` or `+82 10-1234-5678`. */
  readonly expected_phone: string;
}

/** What to create. */
export type NewVerification = DiscoverVerification | MatchVerification;

/** A verification as it is at `server_time`. All times are UTC with milliseconds: `2026-11-21T06:41:00.123Z`. */
export interface Verification {
  /** Opaque. Store it with your attempt. */
  readonly id: string;
  /** Where it stands. */
  readonly status: VerificationStatus;
  /** The environment of the key that created it. */
  readonly environment: "test" | "live";
  /** What it is to find out. */
  readonly mode: "discover" | "match";
  /** The verified phone, `01012345678`. Null until `verified`, and after its erasure. */
  readonly phone: string | null;
  /** The network that reported the matching SMS. Null until `verified`, and where it is not known. */
  readonly carrier: Carrier | null;
  /** As it was sent at the creation. */
  readonly client_reference: string;
  /** As it was sent at the creation. Not the status. */
  readonly state: string;
  /** When it was created. */
  readonly created_at: string;
  /** The first instant at which it can no longer be verified. */
  readonly expires_at: string;
  /** When it was verified. Null otherwise. */
  readonly verified_at: string | null;
  /** The service's clock when it answered. */
  readonly server_time: string;
}

/** A verification as it was created, with what the person needs. */
export interface CreatedVerification extends Verification {
  /** The verification window. Whoever has this address sees the text and the result: give it to this person only. */
  readonly verification_url: string;
  /** The number to send the SMS to. Show it. */
  readonly destination: string;
  /** The whole text to send. Show it. */
  readonly sms_text: string;
}

/** A verification that will not change any more. */
export interface FinishedVerification extends Verification {
  readonly status: Exclude<VerificationStatus, "pending">;
}
