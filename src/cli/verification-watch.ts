/** Follows a verification to its end, over as many connections as it takes. */

import { setTimeout as delay } from "node:timers/promises";
import {
  type Verification,
  VerificationService,
  VerificationStatus,
} from "../gen/proto/phoneproof/v1/verification_pb.ts";
import { isServiceError, type ServiceClient } from "./client.ts";
import { isLasting, type Loss, patienceMs, pauseMs } from "./reconnect.ts";
import { present, Trouble, unreachable } from "./trouble.ts";
import { dateOf } from "./words.ts";

export interface VerificationWatch {
  readonly client: ServiceClient;
  readonly verificationId: string;
  /** What it is now, and what has become of it. What is the same as before is not told again. */
  readonly onStatus: (verification: Verification) => void;
  readonly onLost: (loss: Loss) => void;
  readonly signal: AbortSignal;
  /** How often a loss is told, and how long the service is waited for when the verification must be over. */
  readonly patienceMs?: number;
}

/** A connection that has shown what is, and lasted for so long, was a good one. One that breaks behind that is as none. */
const goodAfterMs = 1_000;

export async function followVerification(watch: VerificationWatch): Promise<void> {
  const { client, verificationId, signal } = watch;
  const patience = watch.patienceMs ?? patienceMs;
  let shown: VerificationStatus | undefined;
  let expiresAt = 0;
  let attempts = 0;
  let toldAt = 0;
  let givesUpAt = 0;
  while (true) {
    const lost = await follow();
    if (lost === undefined) return;
    const now = performance.now();
    if (attempts === 0) givesUpAt = Math.max(now, expiresAt) + patience;
    // A service that was not there from the start should be told at once.
    if (shown === undefined || now > givesUpAt) throw lost;
    if (attempts === 0 || now - toldAt > patience) {
      watch.onLost({ reason: lost.message, isStill: attempts > 0 });
      toldAt = now;
    }
    attempts += 1;
    await delay(pauseMs(attempts), undefined, { signal }).catch(() => signal.throwIfAborted());
    client.redial();
  }

  function isOver(): boolean {
    return shown !== undefined && shown !== VerificationStatus.PENDING;
  }

  /** One connection, until the verification is over or what broke it. */
  async function follow(): Promise<Trouble | undefined> {
    const method = VerificationService.method.watchVerification;
    let shownAt = Number.POSITIVE_INFINITY;
    try {
      for await (const look of client.watch(method, { verificationId }, signal)) {
        const verification = present(look.verification, "a verification");
        shownAt = Math.min(shownAt, performance.now());
        expiresAt = performance.now() + leftMs(verification);
        if (verification.status === shown) continue;
        shown = verification.status;
        watch.onStatus(verification);
      }
    } catch (error) {
      if (!(error instanceof Trouble && isServiceError(error.cause)) || isLasting(error.cause)) throw error;
      return isOver() ? undefined : error;
    } finally {
      if (performance.now() - shownAt >= goodAfterMs) attempts = 0;
    }
    if (isOver()) return undefined;
    return unreachable(`the service at ${client.address.shown} ended the watch early`);
  }
}

/** By the service's clock, which this machine's may differ from. */
function leftMs({ expiresAt, serverTime }: Verification): number {
  return (dateOf(expiresAt)?.getTime() ?? 0) - (dateOf(serverTime)?.getTime() ?? 0);
}
