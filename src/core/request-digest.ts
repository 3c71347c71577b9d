import { hash } from "node:crypto";
import type { NewVerification } from "./verification.ts";

/** The fields of a creation request that a repeat must have in common with it, as sent. */
export type DigestedRequest = Pick<
  NewVerification,
  "mode" | "expectedPhone" | "clientReference" | "state" | "parentOrigin" | "returnUrl"
>;

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

/** Marks a digest that an erasure has put in place of the request's own; no other is as long. */
const erasedMark = "00";

/**
 * The digest that replaces a creation's own when a phone is erased: without the phone, which anybody who tries all numbers could
 * compute from the request's own digest, since the other fields are kept. In mode `discover`, too, that one includes an
 * `expected_phone` that was sent and ignored.
 */
export function erasedDigestOf(request: Omit<DigestedRequest, "expectedPhone">): string {
  return erasedMark + requestDigestOf({ ...request, expectedPhone: null });
}

/**
 * Whether the request is the one that the stored digest was made of. After an erasure, all of its fields are compared except the
 * phone.
 */
export function isSameRequest(
  stored: string,
  request: Omit<DigestedRequest, "expectedPhone"> & { readonly requestDigest: string },
): boolean {
  if (stored === request.requestDigest) return true;
  return stored.length > request.requestDigest.length && stored === erasedDigestOf(request);
}
