import type { CodeFormat } from "./project.ts";
import { randomText } from "./random.ts";

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
  return randomText(codeAlphabets[format], length);
}
