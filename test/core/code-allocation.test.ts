import { describe, expect, test } from "vitest";
import { allocateCode, type CodeOccupancy } from "../../src/core/code-allocation.ts";

/** Every length is crowded on every number, and so many of the longest codes are taken. */
const taken = (longest: Readonly<Record<string, number>>): CodeOccupancy => ({
  pending: () => Number.POSITIVE_INFINITY,
  barred: (destination, _format, length) =>
    length === 10 ? (longest[destination] ?? 0) : Number.POSITIVE_INFINITY,
  add: () => {},
});

const half = 5_000_000_000;

describe("where few codes are pending, and most of a length are in quarantine", () => {
  const inQuarantine = (share: number): CodeOccupancy => ({
    pending: () => 0,
    barred: (destination, _format, length) => (destination === "a" && length === 6 ? share * 1_000_000 : 0),
    add: () => {},
  });

  test.for([
    { name: "less than half of them, they are handed out", share: 0.49, numbers: ["a"], place: ["a", 6] },
    { name: "half of them, a longer one is", share: 0.5, numbers: ["a"], place: ["a", 7] },
    { name: "or one of another number", share: 0.5, numbers: ["a", "b"], place: ["b", 6] },
  ])("$name", ({ share, numbers, place: [destination, length] }) => {
    expect(allocateCode(numbers, "numeric", 6, inQuarantine(share))).toEqual({ destination, length });
  });
});

describe("where even the longest codes are crowded everywhere", () => {
  test.for([
    { name: "less than half of them taken, there is room", longest: { a: half - 1 }, place: "a" },
    { name: "half of them taken, there is none", longest: { a: half }, place: undefined },
    { name: "half of one number's taken, the other has room", longest: { a: half, b: 0 }, place: "b" },
  ])("$name", ({ longest, place }) => {
    const allocated = allocateCode(Object.keys(longest), "numeric", 8, taken(longest));
    expect(allocated).toEqual(place === undefined ? null : { destination: place, length: 10 });
  });

  test("whichever number is looked at first, the one with room is found", () => {
    const longest = { a: half, b: 0, c: half };
    for (let round = 0; round < 100; round++) {
      expect(allocateCode(["a", "b", "c"], "numeric", 8, taken(longest))?.destination).toBe("b");
    }
  });

  test("the project's own length comes first", () => {
    const none = { ...taken({}), barred: () => 0 };
    expect(allocateCode(["a"], "numeric", 8, none)).toEqual({ destination: "a", length: 8 });
  });
});
