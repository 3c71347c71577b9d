/** What goes on for long outlives its connection: when to try again, and for how long. */

import { type ServiceError, status } from "@grpc/grpc-js";
import { errorDetail } from "./client.ts";

/** Without anything from the service for so long it gives up. */
export const patienceMs = 60_000;

const shortestPauseMs = 100;
/** Not longer: what waits here is a person in front of a sign-up. */
const longestPauseMs = 1_000;

/** Doubles from attempt to attempt, with jitter so that many clients do not return at once. */
export function pauseMs(attempts: number): number {
  const pause = Math.min(longestPauseMs, shortestPauseMs * 2 ** (attempts - 1));
  return pause * (0.5 + Math.random() / 2);
}

/** Whether trying again would only meet the same refusal. */
export function isLasting(error: ServiceError): boolean {
  const detail = errorDetail(error);
  if (detail !== undefined)
    return !["service_unavailable", "internal_error", "rate_limited"].includes(detail.code);
  const passing: readonly number[] = [
    status.UNAVAILABLE,
    status.CANCELLED,
    status.ABORTED,
    status.INTERNAL,
    status.UNKNOWN,
    status.DEADLINE_EXCEEDED,
  ];
  return !passing.includes(error.code);
}
