import type { CodeFormat } from "./project.ts";
import { randomText } from "./random.ts";

export interface CodeLengthRange {
  readonly min: number;
  readonly max: number;
}

/** The possible code lengths per format. A group of characters of any other length cannot be a code. */
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

/** The lengths a project may choose. If its numbers run short of free codes, codes may be longer, up to the maximum. */
export function codeLengthRange(format: CodeFormat): CodeLengthRange {
  return lengthRanges[format];
}

/** The number of possible codes. Exact: the largest, 30^12 = 15^12 × 2^12, fits a double without rounding. */
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
