import { Failure } from "../failures.ts";
import { chargedProject, lookupOf, requireScope, verificationNotFound } from "./access.ts";
import type { Call } from "./call.ts";
import type { VerificationRequest } from "./get-verification.ts";
import { isTerminal, type Verification, type Verifications } from "./verification.ts";

/** Publishes the transitions that this process is notified of. */
export interface Transitions {
  /** Until `stop` is called, calls `onChange` when the verification may have changed or notifications may have been lost. */
  follow(verificationId: string, onChange: () => void): { stop(): void };
}

export type WatchVerification = (
  request: VerificationRequest,
  call: Call,
  signal: AbortSignal,
) => AsyncIterable<Verification>;

/** Limits a wait: timers cannot hold arbitrary delays, and a clock that is far off must not make a watch wait for ever. */
const longestWaitMs = 3_600_000;

/**
 * The shortest delay before an unavailable database is queried again. It is up to twice as long, at random, so that watchers do
 * not all retry at once.
 */
const retryMs = 1_000;

/** Subscribes to the changes of one verification. The subscription begins immediately, so that no change is missed. */
export function followChanges(transitions: Transitions, verificationId: string, signal: AbortSignal) {
  let wake = () => {};
  let changed = false;
  const following = transitions.follow(verificationId, () => {
    changed = true;
    wake();
  });
  const onAbort = () => wake();
  signal.addEventListener("abort", onAbort);

  async function next(untilExpiryMs: number): Promise<void> {
    const delay = Math.min(Math.max(0, untilExpiryMs) + 1, longestWaitMs);
    if (!changed && !signal.aborted) {
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, delay);
        wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
    changed = false;
  }

  return {
    /** Waits for a change since the last wait, for the expiry, or for the end of the watch. */
    next,
    /** Returns what `find` returns, retrying while the database is unavailable. Undefined if the watch ends first. */
    async withRetries<T>(find: () => Promise<T>): Promise<T | undefined> {
      while (!signal.aborted) {
        try {
          return await find();
        } catch (error) {
          if (!(error instanceof Failure && error.code === "service_unavailable")) throw error;
          await next(retryMs * (1 + Math.random()));
        }
      }
      return undefined;
    },
    stop(): void {
      signal.removeEventListener("abort", onAbort);
      following.stop();
    },
  };
}

/**
 * Yields the verification's current state, then again at its transition. It subscribes before the first read, so that no
 * transition is missed in between, and sets a timer for the expiry itself, since no notification need arrive at that moment.
 */
export function watchVerification(parts: {
  readonly verifications: Verifications;
  readonly transitions: Transitions;
}): WatchVerification {
  return async function* (request, call, signal) {
    requireScope(call.caller, "read");
    const lookup = lookupOf(call, request);
    const changes = followChanges(parts.transitions, lookup.id, signal);
    try {
      const { usage, value } = await parts.verifications.find(lookup, chargedProject(call.caller));
      call.usage = usage;
      if (value === null) throw verificationNotFound(call.caller, request);
      yield value;
      let current = value;
      while (!isTerminal(current.status) && !signal.aborted) {
        await changes.next(current.expiresAt - current.serverTime);
        const found = await changes.withRetries(() => parts.verifications.find(lookup, null));
        if (found === undefined) break;
        // A standby that took over may lack it.
        if (found.value === null) throw verificationNotFound(call.caller, request);
        current = found.value;
        if (isTerminal(current.status)) yield current;
      }
      // Only a terminal status ends the stream normally: a client whose watch is cut off gets the reason as an error.
      if (!isTerminal(current.status)) throw signal.reason;
    } finally {
      changes.stop();
    }
  };
}
