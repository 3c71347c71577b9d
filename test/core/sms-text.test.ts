import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { type CodeLengths, codeLengthRange, newCode } from "../../src/core/code.ts";
import { codeCandidates, isWebSent, normaliseText } from "../../src/core/message-text.ts";
import type { CodeFormat } from "../../src/core/project.ts";
import {
  checkSmsTemplate,
  codesIn,
  cp949ByteLength,
  defaultSmsTemplate,
  renderSmsText,
  type SmsTextSettings,
} from "../../src/core/sms-text.ts";
import { anyCharacter } from "./any-character.ts";

const everyLength: CodeLengths = { numeric: [6, 7, 8, 9, 10], alphanumeric: [6, 7, 8, 9, 10, 11, 12] };

const settings = (changes: Partial<SmsTextSettings>): SmsTextSettings => ({
  template: defaultSmsTemplate,
  projectName: "Shop",
  codeFormat: "numeric",
  codeLength: 8,
  ...changes,
});

/**
 * CP949 without a table of it: ASCII in one byte; all Hangul syllables, and KS X 1001 as the platform's decoder knows
 * it, in two; and so the euro and the registered sign, which KS X 1001 got in 1998.
 */
const ksX1001 = new Set("€®");
for (let high = 0xa1; high <= 0xfe; high++) {
  // Reserved for user-defined characters.
  if (high === 0xc9 || high === 0xfe) continue;
  for (let low = 0xa1; low <= 0xfe; low++) {
    const text = new TextDecoder("euc-kr").decode(Uint8Array.of(high, low));
    if (text.length === 1 && text !== "\ufffd") ksX1001.add(text);
  }
}
function bytesByDefinition(text: string): number | null {
  let bytes = 0;
  for (const character of text) {
    if (character <= "\u007f") bytes += 1;
    else if ((character >= "가" && character <= "힣") || ksX1001.has(character)) bytes += 2;
    else return null;
  }
  return bytes;
}

describe("the length in CP949", () => {
  test("of every single character is as the character sets say", () => {
    const differing: string[] = [];
    for (let unit = 0; unit <= 0xffff; unit++) {
      const character = String.fromCharCode(unit);
      if (cp949ByteLength(character) !== bytesByDefinition(character)) differing.push(unit.toString(16));
    }
    expect(differing).toEqual([]);
  });

  test("of a text is the sum of its characters' lengths", () => {
    const characters = fc.oneof(fc.constantFrom(..."aZ0?[]~ \n가힣똠뷁漢字あ─①㈜€®"), anyCharacter);
    fc.assert(
      fc.property(fc.string({ unit: characters, maxLength: 40 }), (text) => {
        expect(cp949ByteLength(text)).toBe(bytesByDefinition(text));
      }),
    );
  });

  test.for([
    "é",
    "😀",
    "\ud800",
    "￿",
    "\u200b",
    "한".normalize("NFD"),
    "₩",
    "\u0080",
  ])("does not exist for %j, which is not counted as a question mark either", (text) => {
    expect(cp949ByteLength(text)).toBeNull();
    expect(cp949ByteLength(`?${text}?`)).toBeNull();
  });
});

describe("rendering", () => {
  test.for([
    ["{code}", "Shop", "12345678"],
    ["[{project}] {code}", "Shop", "[Shop] 12345678"],
    ["{code} {project}", "{code}", "12345678 {code}"],
    ["{project} {code}", "$& $1 $$", "$& $1 $$ 12345678"],
    ["{project} {code}", "{project}", "{project} 12345678"],
  ] as const)("%j for %j gives %j", ([template, projectName, text]) => {
    expect(renderSmsText(template, projectName, "12345678")).toBe(text);
  });
});

describe("a template", () => {
  test.for([
    { name: "the default", template: defaultSmsTemplate },
    { name: "the code alone", template: "{code}" },
    { name: "no project", template: "인증번호 {code} 를 보내세요" },
    { name: "Hangul adjacent to the code", template: "번호{code}입니다" },
    { name: "Han characters adjacent to the code", template: "番號{code}" },
    { name: "a line break", template: "[{project}]\n{code}" },
    { name: "English", template: "{project}: send {code} only if you asked for it yourself" },
    { name: "digits near the code", template: "문의 02-123-4567 코드 {code}" },
    { name: "a short group beside the code", template: "{code} 24" },
    { name: "exactly 90 bytes of ASCII", template: `${"a".repeat(79)}:{code}` },
    { name: "exactly 90 bytes of Hangul", template: `${"가".repeat(40)}{code}` },
    { name: "more than 70 characters of ASCII with a line break", template: `${"a".repeat(79)}\n{code}` },
    { name: "exactly 70 characters that are not pure ASCII", template: `가${"a".repeat(58)} {code}` },
  ])("with $name is accepted", ({ template }) => {
    expect(checkSmsTemplate(settings({ template }))).toEqual([]);
  });

  test.for([
    { name: "no code", template: "[{project}]" },
    { name: "no text", template: "" },
    { name: "two codes", template: "{code} 또는 {code}" },
    { name: "two projects", template: "{project} {project} {code}" },
    { name: "an unknown placeholder", template: "{name} {code}" },
    { name: "a placeholder in upper case", template: "{CODE} {code}" },
    { name: "a spaced placeholder", template: "{ project } {code}" },
    { name: "an open brace", template: "{ {code}" },
    { name: "doubled braces", template: "{{code}}" },
    { name: "a carriage return", template: "{project}\r\n{code}" },
    { name: "NUL", template: "\u0000{code}" },
    { name: "a tab", template: "{project}\t{code}" },
    { name: "a lone surrogate", template: "\ud83d{code}" },
    { name: "an emoji", template: "🙂 {code}" },
    { name: "an accented letter", template: "Café {code}" },
    { name: "decomposed Hangul", template: `${"한".normalize("NFD")} {code}` },
    { name: "91 bytes of ASCII", template: `${"a".repeat(80)}:{code}` },
    { name: "92 bytes of Hangul", template: `${"가".repeat(41)}{code}` },
    { name: "71 characters that are not pure ASCII", template: `가${"a".repeat(59)} {code}` },
    { name: "a letter adjacent to the code", template: "No{code}" },
    { name: "a digit adjacent to the code", template: "{code}1" },
    { name: "a Greek letter adjacent to the code", template: "Ω{code}" },
    { name: "a sign that normalises to letters adjacent to the code", template: "㎏{code}" },
    { name: "a web mark in front", template: "[Web발신] {code}" },
    {
      name: "more candidates than are kept before the code",
      template: "23 45 67 89 24 35 46 57 68 79 25 36 47 58 69 {code}",
    },
    {
      name: "more candidates than are kept after the code",
      template: "{code}, 23 45 67 89 24 35 46 57 68 79 25 36 47 58 69",
    },
    { name: "the project's name adjacent to the code", template: "{project}{code}" },
  ])("with $name is refused", ({ template }) => {
    const violations = checkSmsTemplate(settings({ template }));
    expect(violations.map(({ field }) => field)).toContain("sms_template");
  });

  test("in a script that a Korean SMS cannot carry is refused with a short message", () => {
    const script = Array.from({ length: 10_000 }, (_, index) => String.fromCodePoint(0x20000 + index)).join(
      "",
    );
    const [violation] = checkSmsTemplate(settings({ template: `{code} ${script}` }));
    expect(violation?.message).toMatch(/ 𠀀 𠀁 .* and 9990 more$/u);
    expect(violation?.message.length).toBeLessThan(200);
  });

  test.for([
    "2345678923",
    "9876543298",
  ])("is refused if it contains %s, one of the codes that it is checked with", (code) => {
    expect(checkSmsTemplate(settings({ template: `a{code} ${code}`, codeLength: 10 }))).toHaveLength(1);
  });

  test.for([
    { name: "length, in bytes and in characters", template: `가${"a".repeat(80)} {code}` },
    { name: "control character, which an SMS cannot carry either", template: "\u0080{code}" },
  ])("is refused with a single error for its $name", ({ template }) => {
    expect(checkSmsTemplate(settings({ template }))).toHaveLength(1);
  });

  test("is refused with all its errors at once", () => {
    expect(checkSmsTemplate(settings({ template: "{x} {project} {project} é", projectName: "é" }))).toEqual([
      { field: "sms_template", message: "must contain {code} exactly once" },
      { field: "sms_template", message: "must contain {project} at most once" },
      { field: "sms_template", message: "must not contain braces other than {code} and {project}" },
      { field: "sms_template", message: "must not contain characters that a Korean SMS cannot carry: é" },
      { field: "name", message: "must not contain characters that a Korean SMS cannot carry: é" },
    ]);
  });

  test.for([
    { codeFormat: "numeric", codeLength: 6, filler: 80 },
    { codeFormat: "numeric", codeLength: 10, filler: 80 },
    { codeFormat: "alphanumeric", codeLength: 6, filler: 78 },
    { codeFormat: "alphanumeric", codeLength: 12, filler: 78 },
  ] as const)("must have room for the longest $codeFormat code, even if $codeLength characters are set", (row) => {
    const { filler, ...code } = row;
    const template = (length: number) => `${"a".repeat(length - 1)}:{code}`;
    expect(checkSmsTemplate(settings({ ...code, template: template(filler) }))).toEqual([]);
    expect(checkSmsTemplate(settings({ ...code, template: template(filler + 1) }))).toHaveLength(1);
  });
});

test("the code is found again between groups that together would be the same code", () => {
  expect(codesIn("123 123456 456", settings({ template: "123 {code} 456" }))).toContain("123456");
});

test("a text from before a change of settings contains no code of another format", () => {
  expect(codesIn("[BCDEFG] 12345678", settings({}))).toEqual(["12345678"]);
});

describe("a project's name", () => {
  test.for([
    "é",
    "🙂",
    "\u0000",
    "Shop\n24",
    "a\tb",
    "\udc00",
    "한".normalize("NFD"),
  ])("%j is refused if the template shows it, and only then", (projectName) => {
    expect(checkSmsTemplate(settings({ projectName })).map(({ field }) => field)).toEqual(["name"]);
    expect(checkSmsTemplate(settings({ projectName, template: "{code}" }))).toEqual([]);
  });

  test.for([
    "Web발신",
    "web 발신",
    "국제발신",
  ])("%j is refused, because it would mark every text as web-sent", (projectName) => {
    expect(checkSmsTemplate(settings({ projectName }))).toHaveLength(1);
  });

  test.for([
    { codeFormat: "numeric", character: "가", longest: 19 },
    { codeFormat: "numeric", character: "a", longest: 35 },
    { codeFormat: "alphanumeric", character: "가", longest: 18 },
    { codeFormat: "alphanumeric", character: "a", longest: 33 },
  ] as const)("of at most $longest times $character fits the default text with $codeFormat codes", (row) => {
    const { codeFormat, character, longest } = row;
    const check = (length: number) =>
      checkSmsTemplate(settings({ codeFormat, projectName: character.repeat(length) }));
    expect(check(longest)).toEqual([]);
    expect(check(longest + 1)).toMatchObject([{ field: "name" }]);
  });

  test.for([
    "1st Shop 24",
    "12345678",
    "Shop 24",
    "24",
    "A-1",
    "2 3 4",
    "{code}",
    "010-1234-5678",
    "字",
    "é".normalize("NFD"),
  ])("%j adds no candidates to the default text except those that it contains itself", (projectName) => {
    const text = renderSmsText(defaultSmsTemplate, projectName, "87654329");
    const own = codeCandidates(normaliseText(projectName), everyLength).candidates;
    expect(codeCandidates(normaliseText(text), everyLength)).toEqual({
      candidates: [...own, "87654329"],
      capped: false,
    });
  });
});

describe("a text rendered with accepted settings", () => {
  const formats = fc.constantFrom<CodeFormat>("numeric", "alphanumeric");
  const names = fc.string({ unit: fc.constantFrom(..."aB3 24-1.&가나㈜[]①字"), maxLength: 16 });
  const codes = formats.chain((codeFormat) =>
    fc
      .integer({ min: codeLengthRange(codeFormat).min, max: codeLengthRange(codeFormat).max })
      .map((codeLength) => ({ codeFormat, codeLength, code: newCode(codeFormat, codeLength) })),
  );
  const templates = fc.constantFrom(
    defaultSmsTemplate,
    "{code}",
    "{project} {code}",
    "{code} {project}",
    "{project}{code}",
    "{project}-{code}번",
    "코드{code}입니다 {project}",
  );
  /** Separators that a person may put into a code, and their positions. */
  const gaps = fc.array(
    fc.tuple(fc.nat({ max: 12 }), fc.constantFrom(" ", "-", "  ", " - ", "–", "\n", "\u200b")),
    { maxLength: 3 },
  );
  const cases = fc.constantFrom<(text: string) => string>(
    (text) => text,
    (text) => text.toLowerCase(),
  );
  const signatures = fc.constantFrom(
    ["", ""],
    ["", "\n-- \nSent from my phone"],
    ["", " (회사폰)"],
    ["“", "”"],
    ["안녕하세요, ", " 입니다."],
    ["> ", "\n> "],
  );

  test("contains its code, fits into one SMS and does not count as web-sent", () => {
    let accepted = 0;
    fc.assert(
      fc.property(templates, names, codes, (template, projectName, { code, codeFormat, codeLength }) => {
        if (checkSmsTemplate({ template, projectName, codeFormat, codeLength }).length > 0) return;
        accepted++;
        const text = renderSmsText(template, projectName, code);
        const { candidates, capped } = codeCandidates(normaliseText(text), everyLength);
        expect(capped).toBe(false);
        expect(candidates).toContain(code);
        expect(bytesByDefinition(text)).toBeLessThanOrEqual(90);
        expect(isWebSent(normaliseText(text))).toBe(false);
      }),
      { numRuns: 2000 },
    );
    expect(accepted).toBeGreaterThan(1000);
  });

  test("of the default template yields exactly its code, as people retype it", () => {
    fc.assert(
      fc.property(
        names,
        codes,
        gaps,
        cases,
        signatures,
        (projectName, { code }, inserted, respell, [before, after]) => {
          let retyped = respell(code);
          for (const [position, gap] of inserted) {
            const place = 1 + (position % (retyped.length - 1));
            retyped = retyped.slice(0, place) + gap + retyped.slice(place);
          }
          const text = before + renderSmsText(defaultSmsTemplate, projectName, retyped) + after;
          const lengthOfCode: CodeLengths = { numeric: [code.length], alphanumeric: [code.length] };
          const own = codeCandidates(normaliseText(projectName), lengthOfCode).candidates;
          const others = codeCandidates(normaliseText(text), lengthOfCode).candidates.filter(
            (candidate) => !own.includes(candidate),
          );
          expect(others, JSON.stringify(text)).toEqual(own.includes(code) ? [] : [code]);
        },
      ),
      { numRuns: 2000 },
    );
  });
});
