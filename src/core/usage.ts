import { Failure } from "../failures.ts";

/** A project's count of calls in the current month, after the call that was charged. */
export interface UsageCount {
  readonly calls: number;
  /** Null: unlimited. */
  readonly limit: number | null;
}

/** The refusal of a call over the limit; it may be repeated when the month in Seoul is over. */
export function usageLimitExceeded(secondsToNextMonth: number): Failure {
  return new Failure("usage_limit_exceeded", { retryAfterSeconds: secondsToNextMonth });
}
