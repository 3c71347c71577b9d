import { describe, expect, onTestFinished, test, vi } from "vitest";
import type { DueAttempt } from "../../src/core/webhook.ts";
import { createMakeAttempt } from "../../src/webhooks/attempt.ts";
import { retryAfterSeconds, secondsUntilNext } from "../../src/webhooks/schedule.ts";

const minute = 60;
const hour = 60 * minute;

describe("after each failure", () => {
  test.for([
    { failures: 1, gap: 5 },
    { failures: 2, gap: 5 * minute },
    { failures: 3, gap: 30 * minute },
    { failures: 4, gap: 2 * hour },
    { failures: 5, gap: 5 * hour },
    { failures: 6, gap: 10 * hour },
    { failures: 7, gap: 14 * hour },
    { failures: 8, gap: 20 * hour },
    { failures: 9, gap: 24 * hour },
  ])("$failures: the next attempt comes in $gap s ± 20 %", ({ failures, gap }) => {
    expect(secondsUntilNext(failures, null, 0)).toBeCloseTo(gap * 0.8, 6);
    // A due attempt is found within half a second and started a moment later, which is included in the 20 %.
    expect(secondsUntilNext(failures, null, 1)).toBeCloseTo(gap * 1.2 - 0.6, 6);
    const drawn = Array.from({ length: 200 }, () => secondsUntilNext(failures, null) ?? 0);
    expect(Math.min(...drawn)).toBeGreaterThanOrEqual(gap * 0.8);
    expect(Math.max(...drawn)).toBeLessThanOrEqual(gap * 1.2 - 0.6);
    // The jitter varies.
    expect(new Set(drawn).size).toBeGreaterThan(100);
  });

  test("the tenth is final, whatever Retry-After asks for", () => {
    expect(secondsUntilNext(10, null)).toBeNull();
    expect(secondsUntilNext(10, 60)).toBeNull();
  });

  test.for([
    { name: "longer than the schedule is honoured", failures: 1, retryAfter: 120, expected: 120 },
    { name: "shorter than the schedule is ignored", failures: 2, retryAfter: 10, expected: 240 },
    { name: "24 hours is honoured", failures: 1, retryAfter: 86_400, expected: 86_400 },
    { name: "more than 24 hours is reduced to 24 hours", failures: 1, retryAfter: 86_401, expected: 86_400 },
    {
      name: "infinity is reduced to 24 hours",
      failures: 1,
      retryAfter: Number("9".repeat(400)),
      expected: 86_400,
    },
  ])("Retry-After: $name", ({ failures, retryAfter, expected }) => {
    expect(secondsUntilNext(failures, retryAfter, 0)).toBeCloseTo(expected, 6);
  });
});

const now = Date.parse("2026-11-21T06:41:00.000Z");

test.for([
  { header: "120", seconds: 120 },
  { header: " 0 ", seconds: 0 },
  { header: "Sat, 21 Nov 2026 06:42:30 GMT", seconds: 90 },
  { header: "Saturday, 21-Nov-26 06:42:30 GMT", seconds: 90 },
  { header: "Sat Nov 21 06:42:30 2026", seconds: 90 },
  { header: "Tue Dec  1 06:41:00 2026", seconds: 10 * 24 * hour },
  { header: "Sat, 21 Nov 2026 06:40:00 GMT", seconds: 0 },
  { header: "Sat Nov 21 06:42:30 2026 KST", seconds: null },
  { header: "99999999999", seconds: 99_999_999_999 },
  { header: "-5", seconds: null },
  { header: "1.5", seconds: null },
  { header: "soon", seconds: null },
  { header: "Foo 2030 GMT", seconds: null },
  { header: "Mon, 30 Feb 2027 06:41:00 GMT", seconds: null },
  { header: "Sat, 21 Nov 2026 24:30:00 GMT", seconds: null },
  { header: "2027", seconds: 2027 },
  { header: "2027-01-01", seconds: null },
  { header: "", seconds: null },
  { header: null, seconds: null },
])("Retry-After: $header asks for $seconds s", ({ header, seconds }) => {
  onTestFinished(() => void vi.unstubAllEnvs());
  // A date is in GMT whatever this machine's time zone is.
  for (const zone of ["UTC", "Asia/Seoul"]) {
    vi.stubEnv("TZ", zone);
    expect(retryAfterSeconds(header, now)).toBe(seconds);
  }
});

test("Retry-After as a date is counted from the end of the exchange", async () => {
  const attempt = createMakeAttempt({
    refusalOf: () => null,
    send: async () => ({
      durationMs: 14_000,
      status: 503,
      error: "answered 503",
      answer: "",
      retryAfter: "Sat, 21 Nov 2026 06:42:30 GMT",
    }),
    close: async () => {},
  });
  const verificationId = "019aa5d1-5d00-7000-8000-000000000000";
  const due: DueAttempt = {
    verificationId,
    number: 1,
    resends: 0,
    failures: 0,
    endpoint: "",
    url: "https://shop.example/hook",
    secrets: [],
    event: {
      type: "verification.cancelled",
      occurredAt: now,
      verification: {
        id: verificationId,
        projectId: verificationId,
        environment: "live",
        mode: "discover",
        status: "cancelled",
        phone: null,
        carrier: null,
        clientReference: "",
        state: "",
        createdAt: now,
        expiresAt: now,
        verifiedAt: null,
        serverTime: now,
      },
    },
    startedAt: now,
  };
  const { retryInSeconds } = await attempt(due, new AbortController().signal);
  expect(retryInSeconds).toBe(90 - 14);
});
