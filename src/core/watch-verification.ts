import { Failure } from "../failures.ts";
import { chargedProject, lookupOf, requireScope } from "./access.ts";
import type { Call } from "./call.ts";
import type { VerificationRequest } from "./get-verification.ts";
import { isTerminal, type Verification, type Verifications } from "./verification.ts";

/** Tells of transitions as this process hears of them; calls back too where notices may have been lost. */
export interface Transitions {
  /** Until `stop` is called, `onChange` is called whenever the verification may have changed. */
  follow(verificationId: string, onChange: () => void): { stop(): void };
}

export type WatchVerification = (
  request: VerificationRequest,
  call: Call,
  signal: AbortSignal,
) => AsyncIterable<Verification>;

/** Timers hold no longer delays, and a clock that is far off is no reason to wait for ever. */
const longestWaitMs = 3_600_000;

/** A database that is away is asked again after this long, or up to twice as long: watchers do not all come at once. */
const awayMs = 1_000;

/** The changes of one verification for one who watches it: followed from now on, so that none is missed. */
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
    /** Waits for a change that has not been waited for yet, for the expiry, or for the end of the watch. */
    next,
    /** What `find` answers, once it can: a database that is away ends no watch. Undefined where the watch ends before. */
    async look<T>(find: () => Promise<T>): Promise<T | undefined> {
      while (!signal.aborted) {
        try {
          return await find();
        } catch (error) {
          if (!(error instanceof Failure && error.code === "service_unavailable")) throw error;
          await next(awayMs * (1 + Math.random()));
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
 * The verification as it is now, and again at its transition. It is followed before it is first read, so
 * that no transition falls in between; the expiry is waited for here, since nothing need happen anywhere
 * for time to pass.
 */
export function watchVerification(parts: {
  readonly verifications: Verifications;
  readonly transitions: Transitions;
}): WatchVerification {
  return async function* (request, call, signal) {
    requireScope(call.caller, "read");
    const lookup = lookupOf(call.caller, request);
    const changes = followChanges(parts.transitions, lookup.id, signal);
    try {
      const { usage, value } = await parts.verifications.find(lookup, chargedProject(call.caller));
      call.usage = usage;
      if (value === null) throw new Failure("verification_not_found");
      yield value;
      let current: Verification | null = value;
      while (current && !isTerminal(current.status) && !signal.aborted) {
        await changes.next(current.expiresAt - current.serverTime);
        const found = await changes.look(() => parts.verifications.find(lookup, null));
        if (found === undefined) break;
        current = found.value;
        if (current && isTerminal(current.status)) yield current;
      }
      // Only a terminal status ends it by itself: a watcher that is cut off is told why.
      if (current && !isTerminal(current.status)) throw signal.reason;
    } finally {
      changes.stop();
    }
  };
}
