import { expect, onTestFinished, test, vi } from "vitest";
import { progressLine, Tally } from "../../src/cli/progress.ts";

test.for([
  { done: "less than a hundredth", bytes: 99, share: "0%", left: false },
  { done: "a hundredth", bytes: 100, share: "1%", left: true },
  { done: "all but a byte", bytes: 9_999, share: "99%", left: true },
  { done: "all", bytes: 10_000, share: "100%", left: false },
])("progress through a file: $done is done ($share), the remaining time is shown: $left", ({
  bytes,
  share,
  left,
}) => {
  const tally = new Tally();
  tally.bytes = bytes;
  tally.messages = 1_200;
  tally.count("VERIFIED");
  const line = progressLine(tally, 10_000, 80);
  expect(line).toMatch(/^1,200 {2}\d+% of 10 kB {2}.*VERIFIED 1$/);
  expect(line).toContain(`${share} of`);
  expect(/ \d+:\d\d left /.test(line)).toBe(left);
});

test("outcomes that do not fit in the line are summed as others, after the most frequent, and none is lost", () => {
  vi.useFakeTimers({ toFake: ["performance"] });
  onTestFinished(() => {
    vi.useRealTimers();
  });
  const tally = new Tally();
  const counts = { VERIFIED: 90_000, NO_MATCH: 8_000, SENDER_MISMATCH: 1_500, LATE: 300, AMBIGUOUS: 200 };
  for (const [outcome, count] of Object.entries(counts))
    for (let times = 0; times < count; times++) tally.count(outcome);
  tally.messages = 100_000;
  vi.advanceTimersByTime(10_000);
  const line = (columns: number) => progressLine(tally, undefined, columns);
  const known = "100,000  10,000/s  VERIFIED 90,000";
  expect(line(120)).toBe(`${known}  NO_MATCH 8,000  SENDER_MISMATCH 1,500  LATE 300  AMBIGUOUS 200`);
  expect(line(85)).toBe(`${known}  NO_MATCH 8,000  SENDER_MISMATCH 1,500  others 500`);
  expect(line(84)).toBe(`${known}  NO_MATCH 8,000  others 2,000`);
  expect(line(50)).toBe(`${known}  others 10,000`);
});
