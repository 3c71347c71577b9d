import { expect, test } from "vitest";
import { progressLine, Tally } from "../../src/cli/progress.ts";

test.for([
  { done: "less than a hundredth", bytes: 99, share: "0%", left: false },
  { done: "a hundredth", bytes: 100, share: "1%", left: true },
  { done: "all but a byte", bytes: 9_999, share: "99%", left: true },
  { done: "all", bytes: 10_000, share: "100%", left: false },
])("of a file of which $done is done, the time that is left is told: $left", ({ bytes, share, left }) => {
  const tally = new Tally();
  tally.bytes = bytes;
  tally.messages = 1_200;
  tally.count("VERIFIED");
  const line = progressLine(tally, 10_000);
  expect(line).toMatch(/^1,200 {2}\d+% of 10 kB {2}.*VERIFIED 1$/);
  expect(line).toContain(`${share} of`);
  expect(/ \d+:\d\d left /.test(line)).toBe(left);
});
