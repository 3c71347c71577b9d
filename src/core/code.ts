import { randomFillSync } from "node:crypto";
import type { CodeFormat } from "./project.ts";

export interface CodeLengthRange {
  readonly min: number;
  readonly max: number;
}

/** The lengths that codes may have, by format. Only a group of characters of one of them can be a code. */
export type CodeLengths = Readonly<Record<CodeFormat, readonly number[]>>;

/** Upper case without 0, O, 1, I, L and U: a person may have to type the code from a screen. */
export const codeAlphabets: Readonly<Record<CodeFormat, string>> = {
  numeric: "0123456789",
  alphanumeric: "23456789ABCDEFGHJKMNPQRSTVWXYZ",
};

const lengthRanges: Readonly<Record<CodeFormat, CodeLengthRange>> = {
  numeric: { min: 6, max: 10 },
  alphanumeric: { min: 6, max: 12 },
};

export const defaultCodeFormat: CodeFormat = "numeric";
export const defaultCodeLength = 8;

/** The lengths a project may set. Where space runs short a code may be longer than the setting, up to the maximum. */
export function codeLengthRange(format: CodeFormat): CodeLengthRange {
  return lengthRanges[format];
}

/** How many codes there are. Exact: the greatest, 30^12, is 15^12 × 2^12 and so a double. */
export function codeSpace(format: CodeFormat, length: number): number {
  return codeAlphabets[format].length ** length;
}

/** A uniformly distributed code. Throws a `RangeError` for a length outside the format's range. */
export function newCode(format: CodeFormat, length: number): string {
  const { min, max } = lengthRanges[format];
  if (!Number.isInteger(length) || length < min || length > max) {
    throw new RangeError(`a ${format} code has ${min} to ${max} characters`);
  }
  const alphabet = codeAlphabets[format];
  // Bytes beyond the last whole multiple of the alphabet are drawn again: `%` alone would favour its start.
  const unbiasedLimit = 256 - (256 % alphabet.length);
  let code = "";
  while (code.length < length) {
    const byte = randomByte();
    if (byte < unbiasedLimit) code += alphabet[byte % alphabet.length];
  }
  return code;
}

/** One call to the CSPRNG for some 400 codes; a call for each would cost more than the code. */
const pool = new Uint8Array(4096);
let poolPosition = pool.length;

function randomByte(): number {
  if (poolPosition === pool.length) {
    randomFillSync(pool);
    poolPosition = 0;
  }
  return pool[poolPosition++] as number;
}
