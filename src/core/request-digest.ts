import { hash } from "node:crypto";
import type { VerificationMode } from "./verification.ts";

/** The fields of a creation request that a repeat must have in common with it. */
export interface DigestedRequest {
  readonly mode: VerificationMode;
  readonly expectedPhone: string | null;
  readonly clientReference: string;
  readonly state: string;
  readonly parentOrigin: string | null;
  readonly returnUrl: string | null;
}

/**
 * Digest of the parsed request, SHA-256 in hexadecimal: values count exactly as sent, but member order and explicitly sent
 * defaults make no difference.
 */
export function requestDigestOf(request: DigestedRequest): string {
  return hash(
    "sha256",
    JSON.stringify([
      request.mode,
      request.expectedPhone,
      request.clientReference,
      request.state,
      request.parentOrigin,
      request.returnUrl,
    ]),
    "hex",
  );
}

/**
 * Whether the digest may include a phone, which anybody who tries all numbers could then compute from it: the other fields are
 * kept. In mode `discover` the digest includes an `expected_phone` that was sent and ignored.
 */
export function mayRevealPhone(digest: string, request: Omit<DigestedRequest, "expectedPhone">): boolean {
  return digest !== requestDigestOf({ ...request, expectedPhone: null });
}
