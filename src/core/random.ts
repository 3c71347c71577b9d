import { randomFillSync } from "node:crypto";

/** Bytes of the CSPRNG out of one filled pool: a call for each draw would cost more than what it is drawn for. */
const pool = Buffer.alloc(4096);
let used = pool.length;

/** Answers where in the pool the next so many bytes begin, which are handed out to nobody else. */
function draw(count: number): number {
  if (used + count > pool.length) {
    randomFillSync(pool);
    used = 0;
  }
  used += count;
  return used - count;
}

/** `length` characters of an alphabet of at most 256, each as likely as any other. */
export function randomText(alphabet: string, length: number): string {
  // Bytes beyond the last whole multiple of the alphabet are drawn again: `%` alone would favour its start.
  const unbiasedLimit = 256 - (256 % alphabet.length);
  let text = "";
  while (text.length < length) {
    const byte = pool[draw(1)] as number;
    if (byte < unbiasedLimit) text += alphabet[byte % alphabet.length];
  }
  return text;
}

/** So many random bytes in base64url. */
export function randomBase64url(bytes: number): string {
  const start = draw(bytes);
  return pool.toString("base64url", start, start + bytes);
}
