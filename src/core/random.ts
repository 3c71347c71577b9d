import { randomFillSync } from "node:crypto";

/** A pool of CSPRNG bytes, since calling the CSPRNG for each draw would cost more than everything else done with the bytes. */
const pool = Buffer.alloc(4096);
let used = pool.length;

/** Reserves the next `count` bytes of the pool and returns their offset. No byte is used twice. */
function draw(count: number): number {
  if (used + count > pool.length) {
    randomFillSync(pool);
    used = 0;
  }
  used += count;
  return used - count;
}

/** `length` uniformly random characters of an alphabet of at most 256. */
export function randomText(alphabet: string, length: number): string {
  // Bytes beyond the last whole multiple of the alphabet's length are discarded: `%` alone would favour its first characters.
  const unbiasedLimit = 256 - (256 % alphabet.length);
  let text = "";
  while (text.length < length) {
    const byte = pool[draw(1)] as number;
    if (byte < unbiasedLimit) text += alphabet[byte % alphabet.length];
  }
  return text;
}

/** `bytes` random bytes in base64url. */
export function randomBase64url(bytes: number): string {
  const start = draw(bytes);
  return pool.toString("base64url", start, start + bytes);
}
