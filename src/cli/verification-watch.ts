/** Watches a verification until it ends, reconnecting as often as necessary. */

import { setTimeout as delay } from "node:timers/promises";
import {
  type Verification,
  VerificationService,
  VerificationStatus,
} from "../gen/proto/phoneproof/v1/verification_pb.ts";
import { CliError, requirePart, unreachable } from "./cli-error.ts";
import { isServiceError, type ServiceClient } from "./client.ts";
import { defaultTimeoutMs, isPermanent, type Loss, pauseMs } from "./reconnect.ts";
import { dateOf } from "./words.ts";

export interface VerificationWatch {
  readonly client: ServiceClient;
  readonly verificationId: string;
  /** Called with the current state and with each change of status, never twice for the same status. */
  readonly onStatus: (verification: Verification) => void;
  readonly onLost: (loss: Loss) => void;
  readonly signal: AbortSignal;
  /** How often a continuing loss is reported, and how long after the verification's expiry to keep trying. */
  readonly timeoutMs?: number;
}

/**
 * A connection counts as good once it has delivered a state and lasted this long after that. One that breaks sooner counts as a
 * failed attempt.
 */
const goodAfterMs = 1_000;

export async function followVerification(watch: VerificationWatch): Promise<void> {
  const { client, verificationId, signal } = watch;
  const timeoutMs = watch.timeoutMs ?? defaultTimeoutMs;
  let shown: VerificationStatus | undefined;
  let expiresAt = 0;
  let attempts = 0;
  let reportedAt = 0;
  let deadline = 0;
  while (true) {
    const lost = await follow();
    if (lost === undefined) return;
    const now = performance.now();
    if (attempts === 0) deadline = Math.max(now, expiresAt) + timeoutMs;
    // If the service was never reachable, fail at once instead of retrying.
    if (shown === undefined || now > deadline) throw lost;
    if (attempts === 0 || now - reportedAt > timeoutMs) {
      watch.onLost({ reason: lost.message, isStill: attempts > 0 });
      reportedAt = now;
    }
    attempts += 1;
    await delay(pauseMs(attempts), undefined, { signal }).catch(() => signal.throwIfAborted());
    client.redial();
  }

  function isOver(): boolean {
    return shown !== undefined && shown !== VerificationStatus.PENDING;
  }

  /** Uses one connection until the verification is over (undefined) or the connection breaks (the reason). */
  async function follow(): Promise<CliError | undefined> {
    const method = VerificationService.method.watchVerification;
    let shownAt = Number.POSITIVE_INFINITY;
    try {
      for await (const answer of client.watch(method, { verificationId }, signal)) {
        const verification = requirePart(answer.verification, "a verification");
        shownAt = Math.min(shownAt, performance.now());
        expiresAt = performance.now() + leftMs(verification);
        if (verification.status === shown) continue;
        shown = verification.status;
        watch.onStatus(verification);
      }
    } catch (error) {
      if (!(error instanceof CliError && isServiceError(error.cause)) || isPermanent(error.cause))
        throw error;
      return isOver() ? undefined : error;
    } finally {
      if (performance.now() - shownAt >= goodAfterMs) attempts = 0;
    }
    if (isOver()) return undefined;
    return unreachable(`the service at ${client.address.shown} ended the watch early`);
  }
}

/** Milliseconds until expiry by the service's clock, since this machine's clock may differ. */
function leftMs({ expiresAt, serverTime }: Verification): number {
  return (dateOf(expiresAt)?.getTime() ?? 0) - (dateOf(serverTime)?.getTime() ?? 0);
}
