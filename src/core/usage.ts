import { Failure } from "../failures.ts";

/** A project's count of calls in the current month, after the call that was charged. */
export interface UsageCount {
  readonly calls: number;
  /** Null: unlimited. */
  readonly limit: number | null;
}

/** The refusal of a call over the limit; it may be repeated when the month in Seoul is over. */
export function usageLimitExceeded(): Failure {
  return new Failure("usage_limit_exceeded", { retryAfterSeconds: secondsUntilNextMonth(new Date()) });
}

const seoulOffsetMs = 9 * 3_600_000;

/** Korea has had no daylight saving time since 1988, so the offset is a constant. */
function secondsUntilNextMonth(now: Date): number {
  const seoul = new Date(now.getTime() + seoulOffsetMs);
  const next = Date.UTC(seoul.getUTCFullYear(), seoul.getUTCMonth() + 1, 1);
  return Math.max(1, Math.ceil((next - seoul.getTime()) / 1000));
}
