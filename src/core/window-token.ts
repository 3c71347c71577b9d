/** What a verification window's address ends in. */

import { hash, randomFillSync } from "node:crypto";

/** 128 bits in base64url. What has another shape was never a token. */
const shape = /^[\w-]{22}$/;

/** Tokens cut from one filled pool: a system call each would cost more than all the rest of a creation. */
const tokenBytes = 16;
const pool = Buffer.alloc(tokenBytes * 256);
let poolUsed = pool.length;

/** 128 random bits in base64url. */
export function newWindowToken(): string {
  if (poolUsed === pool.length) {
    randomFillSync(pool);
    poolUsed = 0;
  }
  poolUsed += tokenBytes;
  return pool.toString("base64url", poolUsed - tokenBytes, poolUsed);
}

export function isWindowToken(text: string): boolean {
  return shape.test(text);
}

/** All that the database has of a token: its SHA-256, hexadecimal. */
export function windowTokenDigest(token: string): string {
  return hash("sha256", token, "hex");
}
