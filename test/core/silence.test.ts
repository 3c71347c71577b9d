import { describe, expect, test } from "vitest";
import { type Reception, type ReceptionRow, silenceOf, silencesIn } from "../../src/core/silence.ts";

const hour = 3_600_000;
const day = 24 * hour;
/** Half past noon on a Saturday, UTC. */
const now = Date.UTC(2026, 10, 21, 12, 30);
const thisHour = now - hour / 2;

/** The count of each hour of the last nine days, by how many days and hours ago it was. */
function countsOf(count: (daysAgo: number, hoursAgo: number) => number): Map<number, number> {
  const counts = new Map<number, number>();
  for (let hoursAgo = 0; hoursAgo < 9 * 24; hoursAgo++) {
    counts.set(thisHour - hoursAgo * hour, count(Math.floor(hoursAgo / 24), hoursAgo));
  }
  return counts;
}

const silentFor = (minutes: number) => now - minutes * 60_000;
/** The current hour is half over. */
const steady = (perHour: number) => countsOf((_, hoursAgo) => (hoursAgo === 0 ? perHour / 2 : perHour));

const usual: Reception = { lastVerifiedAt: silentFor(30), verified: steady(100), created: steady(120) };

test("a number or carrier from which dozens were expected and none came is silent since its last one", () => {
  expect(silenceOf(usual, now)).toEqual({ since: silentFor(30), expected: expect.closeTo(50, 5) });
});

describe("not silent is", () => {
  test.for<[string, Partial<Reception>]>([
    ["one whose gap may be chance", { lastVerifiedAt: silentFor(15) }],
    ["one with few verifications at any time", { verified: steady(4), lastVerifiedAt: silentFor(300) }],
    ["one with requests only in the hour of its last verification", { lastVerifiedAt: silentFor(29) }],
    ["one without requests", { created: countsOf((daysAgo) => (daysAgo === 0 ? 0 : 120)) }],
    ["one younger than a week", { verified: countsOf((daysAgo) => (daysAgo < 6 ? 100 : 0)) }],
    [
      "one that was as quiet on the same day a week ago",
      { verified: countsOf((daysAgo) => (daysAgo === 7 ? 3 : 100)) },
    ],
    ["one that had only one busy day", { verified: countsOf((daysAgo) => (daysAgo === 7 ? 100 : 3)) }],
    ["one without verifications for days", { lastVerifiedAt: null }],
  ])("%s", ([, different]) => {
    expect(silenceOf({ ...usual, ...different }, now)).toBeNull();
  });
});

test.for([
  { name: "half as busy, half as many", busy: 0.5, expected: 75 },
  { name: "twice as busy, no more than usual", busy: 2, expected: 150 },
])("on a day that is $name are expected", ({ busy, expected }) => {
  const created = countsOf((daysAgo, hoursAgo) => (daysAgo === 0 ? busy : 1) * (hoursAgo === 0 ? 60 : 120));
  const silence = silenceOf({ ...usual, created, lastVerifiedAt: silentFor(90) }, now);
  expect(silence?.expected).toBeCloseTo(expected, 5);
});

test("of a long silence only the last day counts", () => {
  const silence = silenceOf({ ...usual, lastVerifiedAt: now - 3 * day }, now);
  expect(silence?.expected).toBeCloseTo(2400, 5);
});

test("neither a number that takes no new verifications nor the unreported carrier is silent", () => {
  const lastVerifiedAt = silentFor(30);
  const rowsOf = (kind: ReceptionRow["kind"], name: string): ReceptionRow[] =>
    [...steady(100)].map(([hour, verified]) => ({
      ...{ kind, name, hour, verified, created: kind === "number" ? verified : 0 },
      lastVerifiedAt: hour === thisHour ? lastVerifiedAt : null,
    }));
  const rows = [
    ...rowsOf("carrier", "skt"),
    ...rowsOf("carrier", ""),
    ...rowsOf("number", "0200000001"),
    ...rowsOf("number", "0200000002"),
  ];
  const silent = silencesIn(rows, now, (number) => number === "0200000001");
  expect(silent.map(({ kind, name }) => [kind, name])).toEqual([
    ["carrier", "skt"],
    ["number", "0200000001"],
  ]);
});
