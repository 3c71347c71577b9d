import { Failure } from "../failures.ts";
import { boundsOf, chargedProject, lookupOf, requireScope } from "./access.ts";
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
    const lookup = lookupOf(request.verificationId, boundsOf(call.caller, request));
    let wake = () => {};
    let changed = false;
    const following = parts.transitions.follow(lookup.id, () => {
      changed = true;
      wake();
    });
    const onAbort = () => wake();
    signal.addEventListener("abort", onAbort);
    try {
      const { usage, value } = await parts.verifications.find(lookup, chargedProject(call.caller));
      call.usage = usage;
      if (value === null) throw new Failure("verification_not_found");
      yield value;
      let current: Verification | null = value;
      while (current && !isTerminal(current.status) && !signal.aborted) {
        const untilExpiry: number = Math.max(0, current.expiresAt - current.serverTime);
        if (!changed) await waited(Math.min(untilExpiry + 1, longestWaitMs));
        changed = false;
        if (signal.aborted) break;
        current = (await parts.verifications.find(lookup, null)).value;
        if (current && isTerminal(current.status)) yield current;
      }
      // Only a terminal status ends it by itself: a watcher that is cut off is told to come again.
      if (current && !isTerminal(current.status)) {
        throw new Failure("service_unavailable", { message: "The service is restarting: watch again." });
      }
    } finally {
      signal.removeEventListener("abort", onAbort);
      following.stop();
    }

    function waited(milliseconds: number): Promise<void> {
      return new Promise((resolve) => {
        const timer = setTimeout(resolve, milliseconds);
        wake = () => {
          clearTimeout(timer);
          resolve();
        };
        if (signal.aborted) wake();
      });
    }
  };
}
