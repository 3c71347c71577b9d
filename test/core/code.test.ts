import { describe, expect, test } from "vitest";
import {
  codeAlphabets,
  codeLengthRange,
  codeSpace,
  defaultCodeFormat,
  defaultCodeLength,
  newCode,
} from "../../src/core/code.ts";
import type { CodeFormat } from "../../src/core/project.ts";

const lengths: [CodeFormat, number][] = [
  ...[6, 7, 8, 9, 10].map((length): [CodeFormat, number] => ["numeric", length]),
  ...[6, 7, 8, 9, 10, 11, 12].map((length): [CodeFormat, number] => ["alphanumeric", length]),
];

describe("a new code", () => {
  test.for(lengths)("of format %s and length %i has that alphabet and length", ([format, length]) => {
    const shape = format === "numeric" ? /^[0-9]+$/ : /^[2-9A-HJKMNP-TV-Z]+$/;
    for (let round = 0; round < 500; round++) {
      const code = newCode(format, length);
      expect(code).toHaveLength(length);
      expect(code).toMatch(shape);
    }
  });

  test.for([
    ["numeric", 5],
    ["numeric", 11],
    ["alphanumeric", 5],
    ["alphanumeric", 13],
    ["numeric", 7.5],
    ["numeric", Number.NaN],
  ] as const)("of format %s cannot be created with %d characters", ([format, length]) => {
    expect(() => newCode(format, length)).toThrow(RangeError);
  });

  // How many characters a plain remainder of a byte would favour, and their share with that bias.
  test.for([
    { format: "numeric", favoured: 6, biased: 156 / 256 },
    { format: "alphanumeric", favoured: 16, biased: 144 / 256 },
  ] as const)("of format $format draws its characters evenly", ({ format, favoured, biased }) => {
    const alphabet = codeAlphabets[format];
    const counts = new Map<string, number>();
    const characters = 1_000_000;
    for (let drawn = 0; drawn < characters; drawn += 10) {
      for (const character of newCode(format, 10)) counts.set(character, (counts.get(character) ?? 0) + 1);
    }
    const fair = favoured / alphabet.length;
    let share = 0;
    for (const character of alphabet.slice(0, favoured)) share += (counts.get(character) ?? 0) / characters;
    expect(Math.abs(share - fair)).toBeLessThan((biased - fair) / 2);
    for (const character of alphabet) {
      // One byte value too many or too few would change a character's frequency by more than 0.0036.
      const distance = Math.abs((counts.get(character) ?? 0) / characters - 1 / alphabet.length);
      expect(distance).toBeLessThan(0.0018);
    }
  });

  test("is not created from the same random bytes as another", () => {
    const codes = Array.from({ length: 20_000 }, () => newCode("alphanumeric", 12));
    expect(new Set(codes).size).toBe(codes.length);
  });
});

test("the alphanumeric alphabet has 30 symbols, none of them easily confused", () => {
  expect(codeAlphabets.alphanumeric).toHaveLength(30);
  expect(new Set(codeAlphabets.alphanumeric).size).toBe(30);
  expect(codeAlphabets.alphanumeric).not.toMatch(/[01OILU]/);
});

test("numeric codes have 6 to 10 characters, alphanumeric ones 6 to 12, and the default is numeric with 8", () => {
  expect(codeLengthRange("numeric")).toEqual({ min: 6, max: 10 });
  expect(codeLengthRange("alphanumeric")).toEqual({ min: 6, max: 12 });
  expect([defaultCodeFormat, defaultCodeLength]).toEqual(["numeric", 8]);
});

test("the code space is the number of possible codes", () => {
  expect(codeSpace("numeric", 6)).toBe(1_000_000);
  expect(codeSpace("numeric", 10)).toBe(10_000_000_000);
  expect(codeSpace("alphanumeric", 6)).toBe(729_000_000);
  expect(BigInt(codeSpace("alphanumeric", 12))).toBe(30n ** 12n);
});
