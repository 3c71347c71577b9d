import { describe, expect, test } from "vitest";
import { allocateCode, type CodeOccupancy } from "../../src/core/code-allocation.ts";

/** Every length is crowded on every number, and this many of the longest codes are taken. */
const taken = (longest: Readonly<Record<string, number>>): CodeOccupancy => ({
  pending: () => Number.POSITIVE_INFINITY,
  barred: (destination, _format, length) =>
    length === 10 ? (longest[destination] ?? 0) : Number.POSITIVE_INFINITY,
  reserve: () => () => {},
  add: () => {},
});

const half = 5_000_000_000;

describe("if few codes are pending, but many of a length are in quarantine", () => {
  const inQuarantine = (share: number): CodeOccupancy => ({
    pending: () => 0,
    barred: (destination, _format, length) => (destination === "a" && length === 6 ? share * 1_000_000 : 0),
    reserve: () => () => {},
    add: () => {},
  });

  test.for([
    { name: "less than half of them: the length is used", share: 0.49, numbers: ["a"], place: ["a", 6] },
    { name: "half of them: a longer one is used", share: 0.5, numbers: ["a"], place: ["a", 7] },
    {
      name: "half of them, while another number has room: that number is used",
      share: 0.5,
      numbers: ["a", "b"],
      place: ["b", 6],
    },
  ])("$name", ({ share, numbers, place: [destination, length] }) => {
    expect(allocateCode(numbers, "numeric", 6, inQuarantine(share))).toEqual({ destination, length });
  });
});

describe("if even the longest codes are crowded on every number", () => {
  test.for([
    { name: "less than half of them taken: there is room", longest: { a: half - 1 }, place: "a" },
    { name: "half of them taken: there is no room", longest: { a: half }, place: undefined },
    { name: "half of one number's taken: the other number is used", longest: { a: half, b: 0 }, place: "b" },
  ])("$name", ({ longest, place }) => {
    const allocated = allocateCode(Object.keys(longest), "numeric", 8, taken(longest));
    expect(allocated).toEqual(place === undefined ? null : { destination: place, length: 10 });
  });

  test("the one number with room is found, whichever is looked at first", () => {
    const longest = { a: half, b: 0, c: half };
    for (let round = 0; round < 100; round++) {
      expect(allocateCode(["a", "b", "c"], "numeric", 8, taken(longest))?.destination).toBe("b");
    }
  });

  test("the project's own length is used first if it has room", () => {
    const none = { ...taken({}), barred: () => 0 };
    expect(allocateCode(["a"], "numeric", 8, none)).toEqual({ destination: "a", length: 8 });
  });
});
