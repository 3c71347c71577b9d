import { Failure } from "../failures.ts";

/** A project's number of calls in the current month, including the call just charged. */
export interface UsageCount {
  readonly calls: number;
  /** Null: unlimited. */
  readonly limit: number | null;
}

/** The refusal of a call over the limit; its retry time is the end of the current month in Seoul. */
export function usageLimitExceeded(secondsToNextMonth: number): Failure {
  return new Failure("usage_limit_exceeded", { retryAfterSeconds: secondsToNextMonth });
}
