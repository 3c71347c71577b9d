/** Verifications as in the v1 contract, with its field names. */

/** The status of a verification. Only `pending` ever changes. */
export type VerificationStatus = "pending" | "verified" | "expired" | "cancelled";

/** The network that an SMS was reported to come from. */
export type Carrier = "SKT" | "KT" | "LGU+";

interface CreationFields {
  /** Your identifier of this attempt, at most 160 characters. Returned unchanged. */
  readonly client_reference?: string | undefined;
  /** A random value that links the result to the person's session, at most 256 characters. Returned unchanged. */
  readonly state?: string | undefined;
  /** The origin that the verification window notifies. Must equal the one registered for the project. */
  readonly parent_origin?: string | null | undefined;
  /** The URL that the verification window returns to. Must equal the one registered for the project. */
  readonly return_url?: string | null | undefined;
}

/** Determines which phone the person possesses. */
export interface DiscoverVerification extends CreationFields {
  /** The default. */
  readonly mode?: "discover" | undefined;
  /** Only in mode `match`. The service would ignore a phone here, and any other would verify. */
  readonly expected_phone?: null | undefined;
}

/** Determines whether the person possesses the expected phone. */
export interface MatchVerification extends CreationFields {
  readonly mode: "match";
  /** The 010 mobile number that the sender must have: `01012345678`, `010-1234-5678` or `+82 10-1234-5678`. */
  readonly expected_phone: string;
}

/** The verification to create. */
export type NewVerification = DiscoverVerification | MatchVerification;

/** A verification's state at `server_time`. All times are UTC with milliseconds: `2026-11-21T06:41:00.123Z`. */
export interface Verification {
  /** Opaque. Store it with your attempt. */
  readonly id: string;
  /** The current status. */
  readonly status: VerificationStatus;
  /** The environment of the key that created it. */
  readonly environment: "test" | "live";
  /** What it determines. */
  readonly mode: "discover" | "match";
  /** The verified phone, `01012345678`. Null until `verified`, and after its erasure. */
  readonly phone: string | null;
  /** The network that the matching SMS was reported to come from. Null until `verified`, and if unknown. */
  readonly carrier: Carrier | null;
  /** As sent at creation. */
  readonly client_reference: string;
  /** As sent at creation. Not to be confused with `status`. */
  readonly state: string;
  /** When it was created. */
  readonly created_at: string;
  /** The first instant at which it can no longer be verified. */
  readonly expires_at: string;
  /** When it was verified. Null if it was not. */
  readonly verified_at: string | null;
  /** The service's time when it answered. */
  readonly server_time: string;
}

/** A verification as created, with what the person needs. */
export interface CreatedVerification extends Verification {
  /**
   * The URL of the verification window. It shows the SMS text and the result to whoever has it: give it to this person only.
   */
  readonly verification_url: string;
  /** The number that the person must send the SMS to. Show it. */
  readonly destination: string;
  /** The complete SMS text that the person must send. Show it. */
  readonly sms_text: string;
}

/** A verification in a final status. */
export interface FinishedVerification extends Verification {
  readonly status: Exclude<VerificationStatus, "pending">;
}
