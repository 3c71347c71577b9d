import { setTimeout as delay } from "node:timers/promises";
import {
  type AttemptResult,
  type Claim,
  type ClaimBounds,
  type DueAttempt,
  leaseSeconds,
  type MakeAttempt,
  retryLookMs,
} from "../core/webhook.ts";
import { EndpointSlots, type SlotLimits } from "./endpoint-slots.ts";
import type { Job } from "./job.ts";

export interface Deliveries extends Job {
  /** Something may have become due. */
  wake(): void;
}

/** What became due without being heard of, as retries do, is found within this long. */
const idleMs = retryLookMs;
/** From one look to the next at least: what becomes due or free meanwhile is gathered into one statement. */
const gatherMs = 10;
/** After an error, as long as the database takes to come back at least. */
const troubledMs = 1_000;
/** What is under way at the end may finish for so long. Then it is cut and left to its lease. */
const graceMs = 3_000;
/** A database that does not answer keeps nobody any longer. */
const lastGraceMs = 4_000;
/** How long a result is worth being written down: later somebody else has the delivery. */
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
 * Makes the attempts that are due, many at once, on any number of processes: each claims what no other has. As soon as
 * it hears of a transition it looks, so that the first attempt starts at once.
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
  let lookedAt = Number.NEGATIVE_INFINITY;
  let claiming: Promise<void> | undefined;
  let again = false;
  let stopped = false;

  /** Looks in so long, or sooner where that was agreed on already. */
  function lookIn(milliseconds: number): void {
    if (stopped) return;
    if (claiming) {
      again ||= milliseconds < idleMs;
      return;
    }
    const now = performance.now();
    const at = Math.max(now + milliseconds, lookedAt + gatherMs);
    if (at >= dueAt) return;
    dueAt = at;
    clearTimeout(timer);
    timer = setTimeout(look, at - now);
  }

  function look(): void {
    dueAt = Number.POSITIVE_INFINITY;
    again = false;
    claiming = claimSome().then((nextMs) => {
      claiming = undefined;
      lookedAt = performance.now();
      lookIn(again && slots.free > 0 ? Math.min(nextMs, gatherMs) : nextMs);
    });
  }

  /** Answers in how long to look again. */
  async function claimSome(): Promise<number> {
    // Whoever finishes looks again.
    if (slots.free === 0) return idleMs;
    try {
      const { attempts, heldBack } = await parts.claim(slots.look());
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
    lookIn(gatherMs);
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

  /** A result is worth a few tries: without it the delivery would be made again. */
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
    start: () => lookIn(0),
    wake: () => lookIn(0),
    async stop() {
      stopped = true;
      clearTimeout(timer);
      const grace = setTimeout(() => cut.abort(), graceMs);
      const patience = new AbortController();
      const ended = Promise.resolve(claiming).then(() => Promise.all(underWay));
      await Promise.race([ended, delay(lastGraceMs, undefined, { signal: patience.signal }).catch(() => {})]);
      clearTimeout(grace);
      patience.abort();
    },
  };
}
