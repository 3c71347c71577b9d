import { randomUUIDv7 } from "node:crypto";

/**
 * Public identifiers: a prefix that names the resource, and the UUIDv7 behind it as one 128-bit number
 * in 26 characters of lowercase Crockford base32 (TypeID's encoding: two leading zero bits, so the first
 * character is 0 to 7). Encoded identifiers sort as their UUIDs do.
 */
export type IdPrefix = "vrf_" | "prj_" | "key_" | "evt_" | "whk_" | "tok_" | "req_" | "aud_";

const alphabet = "0123456789abcdefghjkmnpqrstvwxyz";
const encodedLength = 26;

/** Two characters per 10 bits: encoding takes 13 look-ups instead of 26. */
const encodedPairs: readonly string[] = Array.from(
  { length: 1024 },
  (_, bits) => `${alphabet[bits >> 5]}${alphabet[bits & 31]}`,
);
const hexBytes: readonly string[] = Array.from({ length: 256 }, (_, byte) =>
  byte.toString(16).padStart(2, "0"),
);

const invalid = -1;
const hyphen = -2;
const nibbleOf = new Int8Array(128).fill(invalid);
for (const [nibble, digit] of [..."0123456789abcdef"].entries()) {
  nibbleOf[digit.charCodeAt(0)] = nibble;
  nibbleOf[digit.toUpperCase().charCodeAt(0)] = nibble;
}
nibbleOf["-".charCodeAt(0)] = hyphen;

const base32ValueOf = new Int8Array(128).fill(invalid);
for (const [value, character] of [...alphabet].entries()) {
  base32ValueOf[character.charCodeAt(0)] = value;
}

/** The smallest and the greatest UUID. */
export const firstUuid = "00000000-0000-0000-0000-000000000000";
export const lastUuid = "ffffffff-ffff-ffff-ffff-ffffffffffff";

/** A new UUIDv7. Ids are ordered by the millisecond; within one millisecond the order is random. */
export function newId(): string {
  return randomUUIDv7();
}

let lastTime = -1;
let lastTimeDigits = "";

/** A new UUIDv7 with a given time, in milliseconds since the epoch. */
export function newIdAt(time: number): string {
  if (time !== lastTime) {
    const digits = time.toString(16).padStart(12, "0");
    lastTimeDigits = `${digits.slice(0, 8)}-${digits.slice(8)}`;
    lastTime = time;
  }
  return lastTimeDigits + randomUUIDv7().slice(lastTimeDigits.length);
}

export function newRequestId(): string {
  return encodeId("req_", randomUUIDv7());
}

/** Throws a `RangeError` if the text is not a UUID: ids come from this service, so that is a bug. */
export function encodeId(prefix: IdPrefix, uuid: string): string {
  let encoded: string = prefix;
  let pending = 0;
  // Two leading zero bits pad the 128 bits to 130, a multiple of 10.
  let pendingBits = 2;
  let nibbles = 0;
  for (let index = 0; index < uuid.length; index++) {
    const nibble = nibbleOf[uuid.charCodeAt(index)] ?? invalid;
    if (nibble === hyphen) continue;
    if (nibble === invalid) throw new RangeError("not a UUID");
    nibbles++;
    pending = (pending << 4) | nibble;
    pendingBits += 4;
    if (pendingBits >= 10) {
      pendingBits -= 10;
      encoded += encodedPairs[pending >> pendingBits];
      pending &= (1 << pendingBits) - 1;
    }
  }
  if (nibbles !== 32) throw new RangeError("not a UUID");
  return encoded;
}

/**
 * The UUID behind an identifier; null unless the text is exactly what `encodeId` returns. Each resource has one spelling, so
 * ids can be compared and logged as text.
 */
export function decodeId(prefix: IdPrefix, text: string): string | null {
  if (text.length !== prefix.length + encodedLength || !text.startsWith(prefix)) return null;
  let hex = "";
  let pending = base32ValueOf[text.charCodeAt(prefix.length)] ?? invalid;
  if (pending === invalid || pending > 7) return null;
  let pendingBits = 3;
  for (let index = prefix.length + 1; index < text.length; index++) {
    const value = base32ValueOf[text.charCodeAt(index)] ?? invalid;
    if (value === invalid) return null;
    pending = (pending << 5) | value;
    pendingBits += 5;
    if (pendingBits >= 8) {
      pendingBits -= 8;
      hex += hexBytes[pending >> pendingBits];
      pending &= (1 << pendingBits) - 1;
    }
  }
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-${hex.slice(12, 16)}-${hex.slice(16, 20)}-${hex.slice(20)}`;
}
