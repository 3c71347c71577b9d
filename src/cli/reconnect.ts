/**
 * When a long operation reconnects, and for how long. If the service was reachable before, this command keeps reconnecting as
 * long as there is something to wait for, since nobody who restarts the service watches this command. A service that was never
 * reachable is reported as a failure.
 */

import { type ServiceError, status } from "@grpc/grpc-js";
import { errorJson, unreachable } from "./cli-error.ts";
import { errorDetail } from "./client.ts";
import { escapeControls } from "./terminal.ts";

/**
 * After this long without anything from the service, the loss is reported again, or the command gives up if the service was
 * never reachable.
 */
export const defaultTimeoutMs = 60_000;

/** A lost connection. Reported at once, and again for as long as no new connection is good. */
export interface Loss {
  readonly reason: string;
  /** Reported before, and not recovered since. */
  readonly isStill: boolean;
}

const shortestPauseMs = 100;
/** No longer, because a person waiting at a sign-up depends on it. */
const longestPauseMs = 1_000;

/** Doubles with each attempt, with jitter so that many clients do not reconnect at the same instant. */
export function pauseMs(attempts: number): number {
  const pause = Math.min(longestPauseMs, shortestPauseMs * 2 ** (attempts - 1));
  return pause * (0.5 + Math.random() / 2);
}

/** Whether a retry would only get the same refusal. */
export function isPermanent(error: ServiceError): boolean {
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
 * The line to print for a loss; undefined: none. With --json only a lasting loss is reported, since a program need not know about
 * one that recovers by itself.
 */
export function lossLine({ reason, isStill }: Loss, json: boolean, more = ""): string | undefined {
  if (!json) {
    const state = isStill ? "still no connection" : "connection lost";
    return escapeControls(`phoneproof: ${state}, trying again${more}: ${reason}`);
  }
  return isStill ? errorJson(unreachable(reason)) : undefined;
}
