import { hash } from "node:crypto";
import { crc32 } from "node:zlib";
import { randomText } from "./random.ts";

/**
 * API keys (`pp_live_…`, `pp_test_…`) and service tokens (`pp_svc_…`): 32 random base62 characters (190 bits), then 6
 * for the CRC-32 of everything before them, so that a typo is refused without a database look-up and secret scanners
 * recognise a leaked one. The checksum guards against accidents, not against forgery.
 */
export type CredentialKind = "live" | "test" | "svc";

const alphabet = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const secretLength = 32;
const checksumLength = 6;
const shape = /^pp_(live|test|svc)_[0-9A-Za-z]{38}$/;

export function newCredential(kind: CredentialKind): string {
  const text = `pp_${kind}_${randomText(alphabet, secretLength)}`;
  return text + checksum(text);
}

/** The kind of credential by shape and checksum; null for anything else. Says nothing about whether it is valid. */
export function parseCredential(text: string): CredentialKind | null {
  const kind = shape.exec(text)?.[1] as CredentialKind | undefined;
  if (kind === undefined) return null;
  const checksumStart = text.length - checksumLength;
  return checksum(text.slice(0, checksumStart)) === text.slice(checksumStart) ? kind : null;
}

/**
 * SHA-256 in hexadecimal; the database stores it as bytes and looks credentials up by it. A fast digest suffices, since
 * 190 random bits cannot be guessed.
 */
export function digestCredential(text: string): string {
  // Hashing to a string takes a fifth of the time of hashing to a Buffer (0.4 µs against 2.1).
  return hash("sha256", text, "hex");
}

/** RFC 6750: the scheme in any case, at least one space, one token68 and nothing after it. */
const bearer = /^[Bb][Ee][Aa][Rr][Ee][Rr] +([A-Za-z0-9._~+/-]+=*)$/;

/**
 * The credential of an `Authorization` header. Undefined if the header is missing or blank; null if it is anything but
 * `Bearer` and one credential.
 */
export function bearerCredential(authorizationHeader: string | undefined): string | null | undefined {
  if (authorizationHeader === undefined || authorizationHeader.trim() === "") return undefined;
  return bearer.exec(authorizationHeader)?.[1] ?? null;
}

function checksum(text: string): string {
  let rest = crc32(text);
  let encoded = "";
  for (let index = 0; index < checksumLength; index++) {
    encoded = alphabet[rest % alphabet.length] + encoded;
    rest = Math.floor(rest / alphabet.length);
  }
  return encoded;
}
