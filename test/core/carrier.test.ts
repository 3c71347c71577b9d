import fc from "fast-check";
import { expect, test } from "vitest";
import { type Carrier, normaliseCarrier } from "../../src/core/carrier.ts";

const spellings: readonly (readonly [string, Carrier])[] = [
  ["SKT", "SKT"],
  ["KT", "KT"],
  ["KTF", "KT"],
  ["LGU+", "LGU+"],
  ["LGU", "LGU+"],
  ["LGT", "LGU+"],
  ["LG U+", "LGU+"],
  ["LG-U+", "LGU+"],
];

test.for([
  ...spellings,
  ["skt", "SKT"],
  ["Kt", "KT"],
  ["lg u+", "LGU+"],
  [" SKT ", "SKT"],
  ["LG  U+", "LGU+"],
  ["ＬＧＵ＋", "LGU+"],
  ["SKT_MVNO", "SKT"],
  ["KT_MVNO", "KT"],
  ["LGU+_MVNO", "LGU+"],
  ["LG U+ MVNO", "LGU+"],
  ["LGU-MVNO", "LGU+"],
  ["skt-mvno", "SKT"],
  ["MVNO_SKT", "SKT"],
  ["EXAMPLE_SKT", "SKT"],
  ["Example Mobile-KT", "KT"],
  ["알뜰모바일_LGU+", "LGU+"],
  ["example_LG U+", "LGU+"],
  ["KT EXAMPLE_KT", "KT"],
  ["450-05", "SKT"],
  ["45005", "SKT"],
  ["450 05", "SKT"],
  ["450-08", "KT"],
  ["45008", "KT"],
  ["450-06", "LGU+"],
  ["45006", "LGU+"],
] as const)("%j is the carrier %j", ([text, carrier]) => {
  expect(normaliseCarrier(text)).toBe(carrier);
});

test.for([
  "",
  " ",
  "_",
  "unknown",
  "NULL",
  "SK",
  "SKTX",
  "XSKT",
  "SKTMVNO",
  "LG",
  "U+",
  "T",
  "KT_SKT",
  "KT_EXAMPLE_SKT",
  "SKT_KT",
  "SKT_EXAMPLE",
  "SKT_",
  "_SKT",
  "S-KT",
  "MVNO",
  "EXAMPLE_MVNO",
  "EXAMPLE MOBILE",
  "450-02",
  "450-04",
  "450-11",
  "450-99",
  "310-260",
  "450-5",
  "450005",
  "440-05",
  "450-05-1",
  "010",
  "AT&T",
  "constructor",
  "__proto__",
])("%j is no known carrier", (text) => {
  expect(normaliseCarrier(text)).toBeNull();
});

test("case, width and surrounding white space make no difference", () => {
  const widen = (text: string) =>
    text.replace(/[!-~]/g, (character) => String.fromCharCode(character.charCodeAt(0) + 0xfee0));
  fc.assert(
    fc.property(
      fc.constantFrom(...spellings),
      fc.constantFrom("", "_MVNO", "-mvno"),
      fc.constantFrom<(text: string) => string>(
        (text) => text,
        (text) => text.toLowerCase(),
        widen,
      ),
      fc.constantFrom("", " ", "\n"),
      ([spelling, carrier], mark, respell, space) => {
        expect(normaliseCarrier(space + respell(spelling + mark) + space)).toBe(carrier);
      },
    ),
  );
});
