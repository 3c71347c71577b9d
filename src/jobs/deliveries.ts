import { setTimeout as delay } from "node:timers/promises";
import {
  type AttemptResult,
  type Claim,
  type ClaimBounds,
  type DueAttempt,
  leaseSeconds,
  type MakeAttempt,
  retryPollMs,
} from "../core/webhook.ts";
import { afterRunning } from "../running-time.ts";
import { EndpointSlots, type SlotLimits } from "./endpoint-slots.ts";
import type { Job } from "./job.ts";

export interface Deliveries extends Job {
  /** Something may have become due: claims without waiting for the next poll. */
  wake(): void;
}

/** Polling interval: what becomes due without a notification, as retries do, is found within it. */
const idleMs = retryPollMs;
/** Minimum time between two claims: everything that becomes due or free meanwhile is handled by one statement. */
const gatherMs = 10;
/** Pause after an error: at least the time a database takes to recover. */
const troubledMs = 1_000;
/** At shutdown, attempts in progress may finish within this time. Then they are aborted and left to their leases. */
const graceMs = 3_000;
/** At shutdown, a database that does not answer is waited for no longer than this. */
const lastGraceMs = 4_000;
/** How long to retry recording a result: after this the lease has ended and another process may own the delivery. */
const recordForMs = leaseSeconds * 1_000;

const limits: SlotLimits = {
  inAll: 1_024,
  quickInAll: 256,
  slowInAll: 256,
  perQuickEndpoint: 8,
  perPromptEndpoint: 64,
  extraInAll: 96,
  perEndpoint: 2,
  slowAfterMs: 1_000,
  promptWithinMs: 100,
};

/**
 * Makes the attempts that are due, many concurrently, on any number of processes: each claims only what no other has claimed. A
 * notified transition triggers a claim at once, so that the first attempt starts immediately.
 */
export function deliverInTime(parts: {
  readonly claim: (bounds: ClaimBounds) => Promise<Claim>;
  readonly attempt: MakeAttempt;
  readonly record: (result: AttemptResult) => Promise<void>;
  readonly onError: (error: unknown) => void;
}): Deliveries {
  const slots = new EndpointSlots(limits);
  const cut = new AbortController();
  const underWay = new Set<Promise<void>>();
  let timer: NodeJS.Timeout | undefined;
  let dueAt = Number.POSITIVE_INFINITY;
  let claimedAt = Number.NEGATIVE_INFINITY;
  let claiming: Promise<void> | undefined;
  /** Something has become due or free during the claim in progress, which may have been too early to see it. */
  let again = false;
  let stopped = false;

  /** Schedules a claim after the given time, unless an earlier one is scheduled already. */
  function scheduleClaim(milliseconds: number): void {
    if (stopped) return;
    if (claiming) {
      again = true;
      return;
    }
    const now = performance.now();
    const at = Math.max(now + milliseconds, claimedAt + gatherMs);
    if (at >= dueAt) return;
    dueAt = at;
    clearTimeout(timer);
    timer = setTimeout(startClaim, at - now);
  }

  function startClaim(): void {
    dueAt = Number.POSITIVE_INFINITY;
    again = false;
    claiming = claimSome().then((nextMs) => {
      claiming = undefined;
      claimedAt = performance.now();
      scheduleClaim(again ? gatherMs : nextMs);
    });
  }

  /** Claims due attempts and starts them; returns the milliseconds until the next claim. */
  async function claimSome(): Promise<number> {
    // Each attempt that finishes schedules a claim.
    if (slots.free === 0) return idleMs;
    try {
      const { attempts, heldBack } = await parts.claim(slots.claimBounds());
      if (cut.signal.aborted) return idleMs;
      for (const due of attempts) {
        const making = make(due).finally(() => underWay.delete(making));
        underWay.add(making);
      }
      return attempts.length > 0 || heldBack > 0 ? gatherMs : idleMs;
    } catch (error) {
      parts.onError(error);
      return troubledMs;
    }
  }

  async function make(due: DueAttempt): Promise<void> {
    try {
      await recorded(await attempted(due));
    } catch (error) {
      if (!cut.signal.aborted) parts.onError(error);
    }
    scheduleClaim(gatherMs);
  }

  async function attempted(due: DueAttempt): Promise<AttemptResult> {
    const giveBack = slots.take(due.endpoint);
    let accepted = false;
    try {
      const result = await parts.attempt(due, cut.signal);
      accepted = result.error === null;
      return result;
    } finally {
      giveBack(accepted);
    }
  }

  /** Retries recording a result, since without a record the delivery would be attempted again. */
  async function recorded(result: AttemptResult): Promise<void> {
    const until = performance.now() + recordForMs;
    for (;;) {
      try {
        return await parts.record(result);
      } catch (error) {
        if (performance.now() >= until || cut.signal.aborted) throw error;
        parts.onError(error);
        await delay(troubledMs, undefined, { signal: cut.signal }).catch(() => {});
      }
    }
  }

  return {
    start: () => scheduleClaim(0),
    wake: () => scheduleClaim(0),
    async stop() {
      stopped = true;
      clearTimeout(timer);
      const grace = afterRunning(graceMs, () => cut.abort());
      const ended = Promise.resolve(claiming).then(() => Promise.all(underWay));
      const late = Promise.withResolvers<void>();
      const lastGrace = afterRunning(lastGraceMs, late.resolve);
      await Promise.race([ended, late.promise]);
      grace.cancel();
      lastGrace.cancel();
    },
  };
}
