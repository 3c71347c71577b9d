import fc from "fast-check";
import { parsePhoneNumberFromString } from "libphonenumber-js/max";
import { describe, expect, test } from "vitest";
import { maskPhone, normaliseDestination, normaliseMobile } from "../../src/core/phone.ts";

/**
 * The national digits that libphonenumber parses. It does not know `0082`, which dials Korea from most of the world.
 */
function nationalByLibrary(text: string): string | null {
  const known = text.normalize("NFKC").replace(/^[^\d+]*0[^\d+]*0[^\d+]*8[^\d+]*2/, "+82");
  const parsed = parsePhoneNumberFromString(known, "KR");
  if (parsed === undefined || parsed.countryCallingCode !== "82") return null;
  return parsed.formatNational().replace(/\D/g, "");
}

const digits = (length: number) =>
  fc.string({ unit: fc.constantFrom(..."0123456789"), minLength: length, maxLength: length });
const separators = fc.constantFrom("", "", "", " ", "-", " - ", "‐", "–", "\u00a0", "－", "\u3000");
const widths = fc.constantFrom<(text: string) => string>(
  (text) => text,
  (text) => text.replace(/\d/g, (digit) => String.fromCharCode(digit.charCodeAt(0) + 0xfee0)),
);

/** The number with a random separator before each digit except the first. */
const spelled = (number: fc.Arbitrary<string>) =>
  fc
    .tuple(number, fc.array(separators, { minLength: 24, maxLength: 24 }), widths)
    .map(([text, gaps, width]) =>
      width([...text].map((character, index) => (index > 0 ? gaps[index] : "") + character).join("")),
    );

describe("a mobile number", () => {
  test.for([
    "01012345678",
    "010-1234-5678",
    "010 1234 5678",
    " 010-1234-5678 ",
    "+821012345678",
    "+82 10-1234-5678",
    "+82-10-1234-5678",
    "+82 010-1234-5678",
    "+82 (0)10-1234-5678",
    "821012345678",
    "82 10 1234 5678",
    "8201012345678",
    "00821012345678",
    "0082 10-1234-5678",
    "0082-010-1234-5678",
    "０１０－１２３４－５６７８",
    "＋８２ １０ １２３４ ５６７８",
    "010‐1234‑5678",
    "010–1234—5678",
    "\u202a010-1234-5678\u202c",
    "\ufeff01012345678",
    "010\u00a01234\u30005678",
  ])("%j is 01012345678", (text) => {
    expect(normaliseMobile(text)).toBe("01012345678");
  });

  test.for([
    "",
    " ",
    "-",
    "010",
    "0101234567",
    "010123456789",
    "1012345678",
    "01112345678",
    "0111234567",
    "016-123-4567",
    "017-123-4567",
    "018-123-4567",
    "019-123-4567",
    "070-1234-5678",
    "050-1234-5678",
    "02-123-4567",
    "031-1234-5678",
    "1588-1234",
    "#1234",
    "+82 11-1234-5678",
    "+82 70 1234 5678",
    "+82 2 123 4567",
    "+1 555 0100",
    "+81 10 1234 5678",
    "81 10 1234 5678",
    "+0082 10 1234 5678",
    "+82 +82 10 1234 5678",
    "010+12345678",
    "00101012345678",
    "82821012345678",
    "+82 00 10 1234 5678",
    "(010) 1234-5678",
    "010.1234.5678",
    "010-1234-567a",
    "010-1234-5678 ext. 5",
    "tel:01012345678",
    "call 010-1234-5678",
    "01012345678,01012345679",
    "01012345678\u0000",
    "010１２３４567",
    "٠١٠١٢٣٤٥٦٧٨",
  ])("is not parsed from %j", (text) => {
    expect(normaliseMobile(text)).toBeNull();
  });

  test("in every accepted spelling is what libphonenumber parses", () => {
    const prefixes = fc.constantFrom("010", "+8210", "8210", "008210", "+82010", "82010", "0082010");
    const numbers = fc.tuple(prefixes, digits(8)).map(([prefix, subscriber]) => prefix + subscriber);
    fc.assert(
      fc.property(spelled(numbers), (text) => {
        const normalised = normaliseMobile(text);
        expect(normalised).toMatch(/^010\d{8}$/);
        expect(normalised).toBe(nationalByLibrary(text));
      }),
      { numRuns: 2000 },
    );
  });

  test("is found in exactly those runs of digits in which libphonenumber finds it", () => {
    const runs = fc
      .tuple(
        fc.constantFrom(
          "",
          "0",
          "01",
          "010",
          "011",
          "070",
          "+82",
          "82",
          "+8210",
          "8210",
          "+8211",
          "+82010",
          "+1",
          "02",
        ),
        fc.string({ unit: fc.constantFrom(..."0123456789"), minLength: 6, maxLength: 12 }),
      )
      .map(([prefix, rest]) => prefix + rest)
      // Malformed here: a lost trunk 0, which the library restores, and 081 to 088, which once selected a carrier.
      .filter((text) => !/^10\d{8}$/.test(text) && !/^(\+?82)?08/.test(text));
    fc.assert(
      fc.property(runs, (text) => {
        const byLibrary = nationalByLibrary(text);
        expect(normaliseMobile(text)).toBe(
          byLibrary !== null && /^010\d{8}$/.test(byLibrary) ? byLibrary : null,
        );
      }),
      { numRuns: 5000 },
    );
  });

  test("is never parsed where libphonenumber parses another number or none, whatever the text", () => {
    const texts = fc.oneof(
      fc.string({ unit: fc.constantFrom(..."0011228810+-() .#a０１é"), maxLength: 20 }),
      fc
        .tuple(fc.string({ maxLength: 3 }), fc.constant("010-1234-5678"), fc.string({ maxLength: 3 }))
        .map((parts) => parts.join("")),
    );
    fc.assert(
      fc.property(texts, (text) => {
        const normalised = normaliseMobile(text);
        if (normalised !== null) expect(normalised).toBe(nationalByLibrary(text));
      }),
      { numRuns: 5000 },
    );
  });

  test("does not change when normalised again", () => {
    fc.assert(
      fc.property(digits(8), (subscriber) => {
        expect(normaliseMobile(`010${subscriber}`)).toBe(`010${subscriber}`);
        expect(normaliseDestination(`010${subscriber}`)).toBe(`010${subscriber}`);
      }),
    );
  });
});

describe("a destination", () => {
  test.for([
    ["01012345678", "01012345678"],
    ["010-1234-5678", "01012345678"],
    ["+82 10-1234-5678", "01012345678"],
    ["+82 010-1234-5678", "01012345678"],
    ["+82 (0)10 1234 5678", "01012345678"],
    ["82 10-1234-5678", "01012345678"],
    ["82(0)10-1234-5678", "01012345678"],
    ["82 (0)2 1234 5678", "0212345678"],
    ["0082 10-1234-5678", "01012345678"],
    ["0082 (0)10-1234-5678", "01012345678"],
    ["02-123-4567", "021234567"],
    ["+82 2 123 4567", "021234567"],
    ["82 2 123 4567", "021234567"],
    ["031-1234-5678", "03112345678"],
    ["070-1234-5678", "07012345678"],
    ["+82-70-1234-5678", "07012345678"],
    ["0505-1234-5678", "050512345678"],
    ["1588-1234", "15881234"],
    ["+82 1588-1234", "15881234"],
    ["82 1588 1234", "15881234"],
    ["0082 1588 1234", "15881234"],
    ["#1234", "#1234"],
    ["# 12-34", "#1234"],
    ["1234#", "1234#"],
    ["＃１２３４", "#1234"],
    ["114", "114"],
    ["8282", "8282"],
    ["82-8282", "828282"],
    ["8212345", "8212345"],
    ["82-123-4567", "821234567"],
    ["12345678901234567890", "12345678901234567890"],
  ] as const)("%j is normalised to %j", ([text, dialled]) => {
    expect(normaliseDestination(text)).toBe(dialled);
    expect(normaliseDestination(dialled)).toBe(dialled);
  });

  test.for([
    "",
    " ",
    "--",
    "12",
    "##",
    "###",
    "123456789012345678901",
    "*123",
    "12a4",
    "shop",
    "+1 555 0100",
    "001 1 555 0100",
    "+82",
    "+82 114",
    "+82 1234567",
    "+82 #1234",
    "0082 12",
    "+82 001 1234567",
    "1+234",
    "010.1234.5678",
    "(02) 123-4567",
    "1234\u0000",
    "١٢٣٤",
  ])("is not parsed from %j", (text) => {
    expect(normaliseDestination(text)).toBeNull();
  });

  test("with a country code is the national number that libphonenumber parses", () => {
    const national = fc.oneof(
      fc.tuple(fc.constantFrom("10", "70", "2", "31", "51", "64"), digits(8)).map((parts) => parts.join("")),
      fc
        .tuple(fc.constantFrom("1544", "1566", "1588", "1600", "1899"), digits(4))
        .map((parts) => parts.join("")),
    );
    const numbers = fc.tuple(fc.constantFrom("+82", "82", "0082"), national).map((parts) => parts.join(""));
    fc.assert(
      fc.property(spelled(numbers), (text) => {
        const dialled = normaliseDestination(text);
        expect(dialled).toMatch(/^(0|1[5-8])\d+$/);
        expect(dialled).toBe(nationalByLibrary(text));
      }),
      { numRuns: 1000 },
    );
  });

  test("consists of 3 to 20 digits and #, at least one of them a digit", () => {
    fc.assert(
      fc.property(fc.string({ unit: fc.constantFrom(..."0128#+- ８"), maxLength: 24 }), (text) => {
        const dialled = normaliseDestination(text);
        if (dialled === null) return;
        expect(dialled).toMatch(/^[\d#]{3,20}$/);
        expect(dialled).toMatch(/\d/);
      }),
      { numRuns: 2000 },
    );
  });
});

describe("a masked phone", () => {
  test("shows the last four digits of a mobile number and nothing else of its subscriber", () => {
    expect(maskPhone("01012345678")).toBe("010-****-5678");
  });

  test.for([
    "",
    "021234567",
    "+821012345678",
    "010-1234-5678",
    "010123456789",
    "text",
  ])("of %j, which is no normalised mobile number, shows nothing", (text) => {
    expect(maskPhone(text)).toBe("****");
  });
});
