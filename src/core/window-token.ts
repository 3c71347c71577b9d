/** The secret token at the end of a verification window's URL. */

import { hash } from "node:crypto";
import { randomBase64url } from "./random.ts";

/** 128 random bits in base64url. Text of any other shape cannot be a token. */
const shape = /^[\w-]{22}$/;

export function newWindowToken(): string {
  return randomBase64url(16);
}

export function isWindowToken(text: string): boolean {
  return shape.test(text);
}

/** SHA-256 of a token, hexadecimal. The database stores only this digest, never the token. */
export function windowTokenDigest(token: string): string {
  return hash("sha256", token, "hex");
}
