/** What a verification window's address ends in. */

import { hash, randomFillSync } from "node:crypto";
import { decodeId, encodeId } from "./ids.ts";

/** A token as the database knows it, which has the digest alone. */
export interface WindowTokenKey {
  /** A UUID. Null: the token is of a version before this one, and says nothing but a secret. */
  readonly verificationId: string | null;
  /** The SHA-256 of the token, hexadecimal. */
  readonly digest: string;
}

const prefix = "vrf_";
const encodedIdLength = encodeId(prefix, "00000000-0000-0000-0000-000000000000").length - prefix.length;

/** 128 bits in base64url. */
const secretShape = /^[\w-]{22}$/;

/** Secrets cut from one filled pool: a system call each would cost more than all the rest of a creation. */
const secretBytes = 16;
const pool = Buffer.alloc(secretBytes * 256);
let poolUsed = pool.length;

/** The verification's id as in `vrf_…`, so that it is found by it, and 128 random bits in base64url: the secret. */
export function newWindowToken(verificationId: string): string {
  if (poolUsed === pool.length) {
    randomFillSync(pool);
    poolUsed = 0;
  }
  poolUsed += secretBytes;
  const secret = pool.toString("base64url", poolUsed - secretBytes, poolUsed);
  return encodeId(prefix, verificationId).slice(prefix.length) + secret;
}

export function windowTokenDigest(token: string): string {
  return hash("sha256", token, "hex");
}

/** Null for what has another shape, and so was never a token. */
export function readWindowToken(token: string): WindowTokenKey | null {
  const digest = windowTokenDigest(token);
  if (secretShape.test(token)) return { verificationId: null, digest };
  const verificationId = decodeId(prefix, prefix + token.slice(0, encodedIdLength));
  if (verificationId === null || !secretShape.test(token.slice(encodedIdLength))) return null;
  return { verificationId, digest };
}
