import { afterEach, beforeEach, describe, expect, onTestFinished, test, vi } from "vitest";
import { type Column, fields, table } from "../../src/cli/layout.ts";
import { displayWidth } from "../../src/cli/terminal.ts";

type Row = Readonly<Record<"id" | "note" | "place" | "size", string>>;

const columns: readonly Column<Row>[] = [
  { heading: "ID", value: ({ id }) => id, rank: 1 },
  { heading: "NOTE", value: ({ note }) => note, rank: 2, shortens: 8 },
  { heading: "PLACE", value: ({ place }) => place, rank: 3, shortens: 8, keepsEnd: true },
  { heading: "SIZE", value: ({ size }) => size, rank: 4 },
];

// Hangul takes two columns of a terminal.
const row = { id: "0123456789", note: "한글로 된 메모입니다", place: "서울특별시 종로구 1번지", size: "7" };

test.for([
  { width: 63, shown: ["0123456789  한글로 된 메모입니다  서울특별시 종로구 1번지  7"] },
  { width: 62, shown: ["0123456789  한글로 된 메모입니다  서울특별시 …로구 1번지  7"] },
  { width: 36, shown: ["0123456789  한글로 …  서울…지   7"] },
  { width: 35, shown: ["0123456789  한글로 된 메…  서울…지", "SIZE"] },
  { width: 20, shown: ["0123456789  한글로 …", "PLACE, SIZE"] },
  // SIZE would fit, but is less important than what does not.
  { width: 19, shown: ["0123456789", "NOTE, PLACE, SIZE"] },
  { width: 5, shown: ["0123456789", "NOTE, PLACE, SIZE"] },
])("in $width columns a table shortens and leaves out the least important first, and never the most important", ({
  width,
  shown: [line, leftOut],
}) => {
  vi.stubEnv("COLUMNS", String(width));
  onTestFinished(() => void vi.unstubAllEnvs());
  const [, ...lines] = table(columns, [row]).split("\n");
  const note =
    leftOut === undefined ? [] : [`No room for ${leftOut}: a wider terminal or --json shows them.`];
  expect(lines).toEqual([line, ...note]);
});

test.for([
  { width: 41, near: "2026-11-21 15:41:00  한글로 …", far: "2025-11-21 15:41:00  한글로 …" },
  // Seven columns are no use to the time, so the note has them.
  { width: 40, near: "11-21 15:41  한글로 된 메모…", far: "2025-11-21   한글로 된 메모…" },
])("in $width columns a time is shown whole, or without year and seconds, or without its time if it is half a year away", ({
  width,
  ...expected
}) => {
  vi.stubEnv("COLUMNS", String(width));
  vi.useFakeTimers({ toFake: ["Date"], now: new Date(2026, 11, 1) });
  onTestFinished(() => {
    vi.unstubAllEnvs();
    vi.useRealTimers();
  });
  const years = [2026, 2025];
  const withTime: readonly Column<number>[] = [
    { heading: "ID", value: () => row.id, rank: 1 },
    { heading: "CREATED", value: (year) => new Date(year, 10, 21, 15, 41), rank: 2 },
    { heading: "NOTE", value: () => row.note, rank: 3, shortens: 8 },
  ];
  const [, near, far] = table(withTime, years).split("\n");
  expect([near, far]).toEqual([`${row.id}  ${expected.near}`, `${row.id}  ${expected.far}`]);
});

test("a text that is shorter than what others are shortened to takes no more room than it needs", () => {
  vi.stubEnv("COLUMNS", "17");
  onTestFinished(() => void vi.unstubAllEnvs());
  expect(table(columns.slice(0, 2), [{ ...row, note: "메모" }])).toBe("ID          NOTE\n0123456789  메모");
});

describe("in a terminal", () => {
  const { isTTY, columns: width } = process.stdout;
  beforeEach(() => {
    vi.stubEnv("FORCE_COLOR", "1");
    vi.stubEnv("NO_COLOR", undefined);
    process.stdout.isTTY = true;
  });
  afterEach(() => {
    Object.assign(process.stdout, { isTTY, columns: width });
    vi.unstubAllEnvs();
  });

  test("headings are bold, labels are dim, and a value has its colour in a column of any width; in a pipe never", () => {
    const states: readonly Column<string>[] = [
      {
        heading: "STATE",
        value: (state) => state,
        rank: 1,
        colour: (state) => (state === "on" ? "green" : undefined),
      },
      { heading: "NEXT", value: () => "-", rank: 2 },
    ];
    const shown = () => `${table(states, ["on", "off"])}\n${fields([["State", "on"]])}`.split("\n");
    expect(shown()).toEqual([
      "\x1b[1mSTATE\x1b[22m  \x1b[1mNEXT\x1b[22m",
      "\x1b[32mon   \x1b[39m  -",
      "off    -",
      "\x1b[2mState\x1b[22m  on",
    ]);
    process.stdout.isTTY = false;
    expect(shown()).toEqual(["STATE  NEXT", "on     -", "off    -", "State  on"]);
  });

  test("its width counts, and not what a shell once exported", () => {
    vi.stubEnv("COLUMNS", "63");
    process.stdout.columns = 20;
    expect(table(columns, [row]).split("\n")[1]).toBe("0123456789  한글로 …");
  });
});

test.for([
  { name: "Hangul", text: "가힣", width: 4 },
  { name: "Hangul in parts", text: "가힣".normalize("NFD"), width: 4 },
  { name: "the first and the last of the kana", text: "\u3041\u30ff", width: 4 },
  { name: "a letter and its accent", text: "e\u0301", width: 1 },
  { name: "an accent without a letter", text: "\u0301", width: 0 },
  { name: "a sign that may be an emoji", text: "✔©", width: 2 },
  { name: "the same as emoji", text: "✔\ufe0f©\ufe0f", width: 4 },
  { name: "an emoji of several people", text: "👨\u200d👩\u200d👧", width: 2 },
])("$name: the text takes $width columns", ({ text, width }) => {
  expect(displayWidth(text)).toBe(width);
});
