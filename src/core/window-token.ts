/** What a verification window's address ends in. */

import { hash } from "node:crypto";
import { randomBase64url } from "./random.ts";

/** 128 bits in base64url. What has another shape was never a token. */
const shape = /^[\w-]{22}$/;

export function newWindowToken(): string {
  return randomBase64url(16);
}

export function isWindowToken(text: string): boolean {
  return shape.test(text);
}

/** All that the database has of a token: its SHA-256, hexadecimal. */
export function windowTokenDigest(token: string): string {
  return hash("sha256", token, "hex");
}
