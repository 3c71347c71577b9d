/**
 * What goes on for long outlives its connection: when to try again, and for how long. A service that was there is waited for
 * as long as there is something to wait for, since whoever restarts it does not look at this; one that never was is told of.
 */

import { type ServiceError, status } from "@grpc/grpc-js";
import { errorDetail } from "./client.ts";
import { escapeControls } from "./terminal.ts";
import { troubleJson, unreachable } from "./trouble.ts";

/** Without anything from the service for so long it is told again that it is waited for, or given up where it never was there. */
export const patienceMs = 60_000;

/** A connection that is gone, told at once, and again for as long as no other is good. */
export interface Loss {
  readonly reason: string;
  /** Told before: it has not come back since. */
  readonly isStill: boolean;
}

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

/**
 * What a person, or a program, is told of it; undefined: nothing. A program has no use for what passes by itself, but it is to
 * know what does not pass.
 */
export function lossLine({ reason, isStill }: Loss, json: boolean, more = ""): string | undefined {
  if (!json) {
    const state = isStill ? "still no connection" : "connection lost";
    return escapeControls(`phoneproof: ${state}, trying again${more}: ${reason}`);
  }
  return isStill ? troubleJson(unreachable(reason)) : undefined;
}
