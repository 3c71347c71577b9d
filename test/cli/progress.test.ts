import { expect, onTestFinished, test, vi } from "vitest";
import { ProgressDisplay, progressLine, summary, Tally } from "../../src/cli/progress.ts";

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

function stopTime(): void {
  vi.useFakeTimers({ toFake: ["performance", "setInterval", "clearInterval"] });
  onTestFinished(() => {
    vi.useRealTimers();
  });
}

test.for([
  { seconds: 6.1, left: "0:07" },
  { seconds: 60, left: "1:00" },
  { seconds: 750, left: "12:30" },
  { seconds: 11_100, left: "3:05:00" },
])("with half of a file done after $seconds s, $left are left", ({ seconds, left }) => {
  stopTime();
  const tally = new Tally();
  tally.bytes = 5_000_000;
  vi.advanceTimersByTime(seconds * 1_000);
  expect(progressLine(tally, 10_000_000, 80)).toBe(`0  50% of 10 MB  ${left} left  0/s`);
});

test.for([
  { name: "has grown since its size was read", bytes: 12_000, total: 10_000, line: "0  100% of 10 kB  0/s" },
  { name: "is empty", bytes: 0, total: 0, line: "0  0/s" },
])("progress through a file that $name", ({ bytes, total, line }) => {
  const tally = new Tally();
  tally.bytes = bytes;
  expect(progressLine(tally, total, 80)).toBe(line);
});

/** Collects what is written to stderr, which is no terminal here. */
function collectErrorOutput() {
  const write = vi.spyOn(process.stderr, "write").mockReturnValue(true);
  onTestFinished(() => write.mockRestore());
  return () => write.mock.calls.splice(0).map(([text]) => text);
}

test("the line is redrawn five times a second on one row of the terminal, until it is cleared", () => {
  stopTime();
  const written = collectErrorOutput();
  const display = new ProgressDisplay(true, (columns) => `${columns} `.repeat(40));
  const line = `\r\x1b[2K${"79 ".repeat(26)}…`;
  vi.advanceTimersByTime(400);
  expect(written()).toEqual([line, line]);
  display.print("a permanent line");
  expect(written().join("")).toBe("\r\x1b[2Ka permanent line\n");
  display.clear();
  vi.advanceTimersByTime(1_000);
  expect(written()).toEqual(["\r\x1b[2K"]);
});

test("without a terminal there are only the permanent lines", () => {
  stopTime();
  const written = collectErrorOutput();
  const display = new ProgressDisplay(false, () => "progress");
  vi.advanceTimersByTime(1_000);
  display.print("a permanent line");
  display.clear();
  expect(written()).toEqual(["a permanent line\n"]);
});

test("outcomes that do not fit in the line are summed as others, after the most frequent, and none is lost", () => {
  stopTime();
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
  // Narrower than what is never left out.
  expect(line(10)).toBe("100,000  10,000/s  others 100,000");
});

test("the summary counts the receipts of each outcome, the most frequent first, and the duplicates", () => {
  stopTime();
  const tally = new Tally();
  vi.advanceTimersByTime(2_000);
  expect(summary(tally)).toBe("0 receipts in 2.0 s (0 per second).");
  tally.messages = 1_200;
  for (let times = 0; times < 200; times++) tally.count("NO_MATCH");
  for (let times = 0; times < 1_000; times++) tally.count("VERIFIED");
  const outcomes = ["OUTCOME   MESSAGES", "VERIFIED     1,000", "NO_MATCH       200", "", ""].join("\n");
  const total = "1,200 receipts in 2.0 s (600 per second)";
  expect(summary(tally)).toBe(`${outcomes}${total}.`);
  tally.duplicates = 3;
  expect(summary(tally)).toBe(`${outcomes}${total}, 3 of them duplicates.`);
});
