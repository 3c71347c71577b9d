import fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { CodeLengths } from "../../src/core/code.ts";
import * as messageText from "../../src/core/message-text.ts";
import { anyCharacter } from "./any-character.ts";

const { normaliseText } = messageText;
const isWebSent = (text: string) => messageText.isWebSent(normaliseText(text));
const codeCandidates = (text: string, lengths: CodeLengths) =>
  messageText.codeCandidates(normaliseText(text), lengths);

const everyLength: CodeLengths = { numeric: [6, 7, 8, 9, 10], alphanumeric: [6, 7, 8, 9, 10, 11, 12] };
const eightDigits: CodeLengths = { numeric: [8], alphanumeric: [] };
const eightCharacters: CodeLengths = { numeric: [], alphanumeric: [8] };

describe("a normalised text", () => {
  test.for([
    ["1234", "1234"],
    ["  12\t\r\n34 ", "12 34"],
    ["12  34", "12 34"],
    ["１２３４ ＡＢ", "1234 AB"],
    ["12\u200b34\ufeff", "1234"],
    ["12\u00ad34", "1234"],
    ["가\u200b나", "가나"],
    ["한글".normalize("NFD"), "한글"],
    [`${"하".normalize("NFD")}\u200b\u11ab`, "한"],
    ["12\u316434", "12 34"],
    ["12\u115f34", "12 34"],
    ["12\u116034", "12 34"],
    ["12\uffa034", "12 34"],
    ["\u0301\u030212", "'12"],
    [`a${"\u0316".repeat(30)}`, `a${"\u0316".repeat(30)}`],
    [`a${"\u0316".repeat(31)}12`, `a${"\u0316".repeat(30)}12`],
    [`a${"\u0316\u034f\u0317".repeat(16)}`, `a${"\u0316\u0317".repeat(15)}`],
    [`ｶ${"\uff9e".repeat(40)}`, `ガ${"\u3099".repeat(29)}`],
    ["12\u000b\u001f34", "12 34"],
    ["①㎏", "1kg"],
    [" ", ""],
    ["", ""],
  ] as const)("of %j is %j", ([text, normal]) => {
    expect(normaliseText(text)).toBe(normal);
  });

  test("is in NFKC with single spaces, and does not change when normalised again", () => {
    const texts = fc.string({
      unit: fc.oneof(fc.constantFrom(...boundaryPieces), anyCharacter),
      maxLength: 30,
    });
    fc.assert(
      fc.property(texts, (text) => {
        const normal = normaliseText(text);
        expect(normal).toBe(normal.normalize("NFKC"));
        expect(normal).not.toMatch(/\s\s|^\s|\s$|[^\P{Cc}]/u);
        expect(normaliseText(normal)).toBe(normal);
      }),
      { numRuns: 2000 },
    );
  });
});

describe("a message sent from the web", () => {
  const brackets = [
    "[]",
    "()",
    "{}",
    "<>",
    "［］",
    "（）",
    "＜＞",
    "【】",
    "〔〕",
    "〖〗",
    "〈〉",
    "《》",
    "「」",
    "『』",
    "«»",
    "≪≫",
    "“”",
  ];
  const spaces = fc.constantFrom("", "", " ", "\u00a0", "\u3000", "\u200b", "\ufeff", "\n", "\u3164");
  const inFront = fc.constantFrom(
    "",
    " ",
    "\n",
    "\ufeff",
    "\u200b",
    "\u200e\u2060",
    "\u00ad",
    "\u0002",
    "\ue000",
    "※ ",
    "> ",
    "´",
    "[",
  );

  test("is recognised by its mark in any case, spacing, bracket, width and normal form", () => {
    fc.assert(
      fc.property(
        fc.constantFrom(
          ...["Web발신", "WEB발신", "web발신", "wEb발신", "국제발신", "국외발신", "Ｗｅｂ발신"],
          ...["웹발신", "국제웹발신", "국제Web발신"],
        ),
        fc.constantFrom(...brackets),
        fc.array(spaces, { minLength: 10, maxLength: 10 }),
        inFront,
        fc.constantFrom("NFC", "NFD", "NFKC", "NFKD"),
        fc.constantFrom("", "\n", " ", "본인확인 12345678"),
        (word, [open = "", close = ""], gaps, front, form, rest) => {
          const inner = [...word, close].map((character, index) => `${gaps[index]}${character}`).join("");
          const text = (front + open + inner + rest).normalize(form);
          expect(isWebSent(text), JSON.stringify(text)).toBe(true);
        },
      ),
      { numRuns: 3000 },
    );
  });

  test.for([
    "",
    "12345678",
    "Web발신",
    "Web발신 12345678",
    "12345678 [Web발신]",
    "본인확인 [Web발신] 12345678",
    "가 [국제발신]",
    "[Shop] 본인확인 12345678",
    "[Shop] [Web발신] 12345678",
    "[Web 발신 안내] 12345678",
    "[발신] 12345678",
    "[Website발신] 12345678",
    "[국내발신] 12345678",
    "[국제웹] 12345678",
    "[웹 발신 안내] 12345678",
    "[Web] 발신 12345678",
    "[국제] 12345678",
    "[Web발신",
  ])("is not %j", (text) => {
    expect(isWebSent(text)).toBe(false);
  });
});

describe("the code candidates", () => {
  test.for([
    ["the code alone", "12345678", ["12345678"]],
    ["adjacent Hangul", "번호는12345678입니다", ["12345678"]],
    ["adjacent punctuation", "(12345678).", ["12345678"]],
    ["quotes around it", "“12345678”", ["12345678"]],
    ["spacing accents used as quotes around it", "´12345678´", ["12345678"]],
    ["adjacent overlines", "\uffe312345678‾", ["12345678"]],
    ["a space inside it", "1234 5678", ["12345678"]],
    ["hyphens and spaces inside it", "12-34 - 56 78", ["12345678"]],
    ["typographic hyphens inside it", "12‐34–56−78", ["12345678"]],
    ["a line break inside it", "1234\r\n5678", ["12345678"]],
    ["a space after every digit", "1 2 3 4 5 6 7 8", ["12345678"]],
    ["zero-width characters inside it", "1234\u200b\u20605678", ["12345678"]],
    ["full-width digits", "１２３４５６７８", ["12345678"]],
    ["an adjacent sign with an emoji selector", "☎\ufe0f12345678", ["12345678"]],
    ["adjacent emoji", "😀12345678😀", ["12345678"]],
    ["leading zeros", "00000000", ["00000000"]],
    ["the same code twice", "12345678, 12345678", ["12345678"]],
    ["two codes, in their order", "87654321, 12345678", ["87654321", "12345678"]],
    ["two codes side by side", "87654321 12345678", ["87654321", "12345678"]],
    ["a short group beside it", "24 12345678", ["12345678"]],
    ["a code and a joined group that overlaps it", "1234 5678 9012", ["12345678", "56789012"]],
    ["a word of another script beside it", "é 12345678", ["12345678"]],
    ["a run between Hangul", "가1234 5678나", ["12345678"]],
    ["adjacent Han characters", "認證番號12345678番", ["12345678"]],
    ["adjacent kana", "コード12345678です", ["12345678"]],
  ] as const)("with %s: %j", ([, text, candidates]) => {
    expect(codeCandidates(text, eightDigits)).toEqual({ candidates, capped: false });
  });

  test.for([
    ["no text", ""],
    ["too few digits", "1234567"],
    ["a part of a longer group", "123456789"],
    ["a letter right before it", "A12345678"],
    ["a letter right after it", "12345678k"],
    ["a letter inside it", "1234a678"],
    ["an accented letter right before it", "é12345678"],
    ["an accented letter in two characters right before it", "e\u030112345678"],
    ["a digit of another script right after it", "12345678\u0669"],
    ["only digits of another script", "\u0661\u0662\u0663\u0664\u0665\u0666\u0667\u0668"],
    ["a combining mark inside it", "1234\u03365678"],
    ["more combining marks inside it than any language uses", `1234${"\u0316\u0301".repeat(500)}5678`],
    ["a zero-width character that hides a longer group", "123456789\u200b"],
    ["a digit that a zero-width character seems to cut off", "9\u200b12345678"],
    ["an enclosed digit right before it", "①12345678"],
    ["Hangul inside it", "1234가5678"],
    ["a compatibility jamo inside it", "1234ㅋ5678"],
    ["a full stop inside it", "1234.5678"],
    ["an underscore inside it", "1234_5678"],
    ["a spacing accent inside it", "1234´5678"],
    ["a long s, which is a letter", "ſ12345678"],
    ["a sharp s, which is one letter and not two", "ß12345678"],
  ] as const)("are none with %s: %j", ([, text]) => {
    expect(codeCandidates(text, eightDigits)).toEqual({ candidates: [], capped: false });
  });

  test.for([
    ["lower case", "kxp429qz", ["KXP429QZ"]],
    ["mixed case and a hyphen", "KxP4-29qZ", ["KXP429QZ"]],
    ["only digits of the alphabet", "23456789", ["23456789"]],
    ["only letters", "kxpqrstv", ["KXPQRSTV"]],
    ["full-width letters", "ＫＸＰ４２９ＱＺ", ["KXP429QZ"]],
    ["a zero in it", "KXP4290Z", []],
    ["an O in it", "KXP429OZ", []],
    ["a u in it", "kxp429uz", []],
    ["an I beside it", "I KXP429QZ", ["KXP429QZ"]],
    ["an I right before it", "IKXP429QZ", []],
    ["digits with 0 and 1", "10345678", []],
    ["a dotless i in it", "kxp429qı", []],
    ["an accent in it", "kxp429qé", []],
  ] as const)("of the alphanumeric format with %s: %j", ([, text, candidates]) => {
    expect(codeCandidates(text, eightCharacters)).toEqual({ candidates, capped: false });
  });

  test("have the lengths of their format", () => {
    const lengths: CodeLengths = { numeric: [6], alphanumeric: [8] };
    expect(codeCandidates("123456, 10345678, 23456789, ABCDEF, 222222", lengths).candidates).toEqual([
      "123456",
      "23456789",
      "222222",
    ]);
    expect(codeCandidates("123456", { numeric: [], alphanumeric: [] })).toEqual({
      candidates: [],
      capped: false,
    });
  });

  test("are exactly the whole groups and joined groups of a length in use, and never a part of a group", () => {
    const texts = fc.array(fc.oneof(fc.constantFrom(...boundaryPieces), fc.constantFrom(..."123 -aB0o가")), {
      maxLength: 24,
    });
    const lengthsInUse = fc.constantFrom<CodeLengths>(
      everyLength,
      eightDigits,
      eightCharacters,
      { numeric: [6, 10], alphanumeric: [7] },
      // Shorter than any real code, so that the short texts above contain more candidates.
      { numeric: [1, 2, 3, 4], alphanumeric: [2, 3] },
    );
    fc.assert(
      fc.property(texts, lengthsInUse, (pieces, lengths) => {
        const text = pieces.join("");
        const expected = candidatesByDefinition(normaliseText(text), lengths);
        const { candidates, capped } = codeCandidates(text, lengths);
        expect(capped).toBe(expected.size > 32);
        if (!capped) expect(new Set(candidates)).toEqual(expected);
        expect(new Set(candidates).size).toBe(candidates.length);
      }),
      { numRuns: 5000 },
    );
  });

  test("stop at 32 distinct ones, and are reported as capped at the 33rd", () => {
    const codes = Array.from({ length: 33 }, (_, index) => String(12345600 + index));
    const [last = ""] = codes.slice(-1);
    const full = codes.slice(0, 32);
    expect(codeCandidates(full.join(", "), eightDigits)).toEqual({ candidates: full, capped: false });
    expect(codeCandidates([...full, ...full].join(" "), eightDigits)).toEqual({
      candidates: full,
      capped: false,
    });
    expect(codeCandidates([...full, last].join(", "), eightDigits)).toEqual({
      candidates: full,
      capped: true,
    });
    expect(codeCandidates(`${[...full, last].join(", ")}.`, eightDigits)).toEqual({
      candidates: full,
      capped: true,
    });
    expect(codeCandidates([...full, last].join(" "), eightDigits)).toEqual({
      candidates: full,
      capped: true,
    });
  });

  test("have room for the longest code with a space after every character", () => {
    const { candidates, capped } = codeCandidates("본인확인 2 3 4 5 6 7 8 9 A B C D 보냅니다", everyLength);
    expect(capped).toBe(false);
    expect(candidates).toContain("23456789ABCD");
  });

  test.for([
    ["single digits", "1 ", true],
    ["single letters", "a-", true],
    ["groups of two", "23 23 ", true],
    ["one group", "1", false],
    ["groups that are no code", "0 o ", false],
    ["brackets", "[ ", false],
    ["beginnings of a mark", "[web발 ", false],
    ["accents", "e\u0301", false],
    ["combining marks that have to be put in order", "\u0316\u0301", false],
    ["voiced sound marks among accents", "\u0301\uff9e", false],
    ["Han characters", "字", false],
    ["zero-width characters", "\u200b", false],
    ["ligatures of eighteen characters", "\ufdfa", false],
    ["white space", " \n", false],
  ] as const)(
    "and the web mark are searched for in linear time in a text of nothing but %s",
    { timeout: 20_000 },
    ([, piece, finds]) => {
      // A hundred times the length of a message: milliseconds in linear time, minutes in quadratic time.
      const text = piece.repeat(200_000 / piece.length);
      expect(codeCandidates(`${text}1`, everyLength).candidates.length > 0).toBe(finds);
      expect(isWebSent(text)).toBe(false);
    },
  );
});

/** Pieces at which groups and runs begin, end or break. */
const boundaryPieces = [
  ..."012 -.가",
  "24",
  "ab",
  "KXP4",
  "123456",
  "12345678",
  "o",
  "é",
  "e\u0301",
  "ß",
  "字",
  "ㅋ",
  "\u1100",
  "\u302e",
  "\u302f",
  "\ua960",
  "\ud7b0",
  "\u0661",
  "ー",
  "１",
  "½",
  "①",
  "–",
  "−",
  "—",
  "―",
  "⁃",
  "_",
  ",",
  "\n",
  "\u00a0",
  "\u200b",
  "\ufeff",
  "\ufe0f",
  "\u0301",
  "\u3164",
  "\u0000",
  "😀",
  "𝟏",
  "𐐀",
];

/**
 * The definition, by trying every substring: code characters with only spaces and hyphens between them, and on either
 * side no letter, digit or mark other than Hangul, Han and kana.
 */
function candidatesByDefinition(normal: string, lengths: CodeLengths): Set<string> {
  const ofGroup = (character: string) =>
    /[\p{L}\p{N}\p{M}]/u.test(character) &&
    !/[\p{Script=Hangul}\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}]/u.test(character) &&
    !/[\u302e\u302f\u30fc]/.test(character);
  const characters = [...normal];
  const found = new Set<string>();
  for (let start = 0; start < characters.length; start++) {
    for (let end = start + 1; end <= characters.length; end++) {
      const text = characters.slice(start, end).join("");
      if (!/^[0-9A-Za-z]+(?:[ \u2010-\u2015\u2043\u2212-]+[0-9A-Za-z]+)*$/.test(text)) continue;
      if (ofGroup(characters[start - 1] ?? "") || ofGroup(characters[end] ?? "")) continue;
      const code = text.replace(/[^0-9A-Za-z]/g, "").toUpperCase();
      if (/^\d+$/.test(code) && lengths.numeric.includes(code.length)) found.add(code);
      if (/^[2-9A-HJKMNP-TV-Z]+$/.test(code) && lengths.alphanumeric.includes(code.length)) found.add(code);
    }
  }
  return found;
}
