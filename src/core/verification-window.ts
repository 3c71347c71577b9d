/** The verification window: what its user sees of a verification, and everything its token gives access to. */

import { Failure } from "../failures.ts";
import type { Call } from "./call.ts";
import type { Carrier } from "./carrier.ts";
import { newId } from "./ids.ts";
import type { InboundOutcome, PendingReason } from "./inbound-judgement.ts";
import { simulatorSource } from "./inbound-message.ts";
import { maskPhone } from "./phone.ts";
import type { Environment, ServiceCaller } from "./project.ts";
import type { InboundReceipt, TakeInboundMessages } from "./take-inbound-messages.ts";
import {
  isTerminal,
  type VerificationMode,
  type VerificationStatus,
  type Verifications,
} from "./verification.ts";
import { followChanges, type Transitions } from "./watch-verification.ts";
import { isWindowToken, windowTokenDigest } from "./window-token.ts";

/** Times are milliseconds since the epoch by the database's clock. Ids are UUIDs. */
export interface VerificationWindow {
  readonly verificationId: string;
  readonly projectId: string;
  readonly projectName: string;
  readonly environment: Environment;
  readonly mode: VerificationMode;
  readonly status: VerificationStatus;
  /** `010-****-5678`; null until verified, and after the phone has been erased. */
  readonly maskedPhone: string | null;
  readonly carrier: Carrier | null;
  readonly clientReference: string;
  readonly state: string;
  readonly destination: string;
  readonly smsText: string;
  readonly parentOrigin: string | null;
  readonly returnUrl: string | null;
  readonly expiresAt: number;
  readonly serverTime: number;
  /** Why the verification is still pending although a message arrived; null if none arrived, or if the verification is over. */
  readonly hint: { readonly reason: PendingReason; readonly noticedAt: number } | null;
}

export interface FoundWindow extends Omit<VerificationWindow, "maskedPhone"> {
  readonly phone: string | null;
}

/** How long after the end of its verification a window can still be opened. */
export const windowHours = 24;

/** The windows as the database keeps them. */
export interface VerificationWindows {
  /**
   * Finds a window by its token's digest. Null if there is none or its `windowHours` have passed. May return a stale `pending`.
   */
  find(tokenDigest: string): Promise<FoundWindow | null>;
}

export type GetVerificationWindow = (token: string) => Promise<VerificationWindow>;
export type WatchVerificationWindow = (
  token: string,
  signal: AbortSignal,
) => AsyncIterable<VerificationWindow>;

/** A message from the simulated phone. */
export interface TestMessage {
  readonly from: string;
  readonly text: string;
  readonly carrier: string;
}

export type SendTestMessage = (
  token: string,
  message: TestMessage,
  origin: Pick<Call, "requestId" | "address">,
) => Promise<{ readonly outcome: InboundOutcome; readonly duplicate: boolean }>;

/** Returns the window's current state. A token that is wrong, too old or malformed is answered as not found. */
export function getVerificationWindow(parts: {
  readonly windows: VerificationWindows;
  readonly verifications: Verifications;
}): GetVerificationWindow {
  return async (token) => {
    if (!isWindowToken(token)) throw new Failure("not_found");
    const digest = windowTokenDigest(token);
    const found = await parts.windows.find(digest);
    if (found === null) throw new Failure("not_found");
    if (isTerminal(found.status) || found.serverTime < found.expiresAt) return shown(found);
    // Past the expiry the database decides, by compare-and-set, whether the verification expired or was verified in time;
    // `find` makes it do so, and the window is read again.
    await parts.verifications.find({ id: found.verificationId, projectId: null, environment: null }, null);
    return shown((await parts.windows.find(digest)) ?? found);
  };
}

/** Masks the phone: the full number never leaves the core for the window. */
function shown({ phone, hint, ...window }: FoundWindow): VerificationWindow {
  return {
    ...window,
    maskedPhone: phone === null ? null : maskPhone(phone),
    hint: isTerminal(window.status) ? null : hint,
  };
}

/**
 * Yields the window's current state, then again whenever something it shows changes. It reads, subscribes and reads again, so
 * that no change is missed in between; refusals are thrown by the first read. Ends after a terminal status or when `signal`
 * aborts.
 */
export function watchVerificationWindow(parts: {
  readonly getWindow: GetVerificationWindow;
  readonly transitions: Transitions;
}): WatchVerificationWindow {
  return async function* (token, signal) {
    let last = await parts.getWindow(token);
    const changes = followChanges(parts.transitions, last.verificationId, signal);
    try {
      yield last;
      while (!isTerminal(last.status)) {
        const current = await changes.withRetries(() => parts.getWindow(token));
        if (current === undefined) return;
        if (differs(current, last)) yield current;
        last = current;
        if (!isTerminal(last.status)) await changes.next(last.expiresAt - last.serverTime);
      }
    } finally {
      changes.stop();
    }
  };
}

function differs(one: VerificationWindow, other: VerificationWindow): boolean {
  return one.status !== other.status || one.hint?.noticedAt !== other.hint?.noticedAt;
}

/** The caller for messages of the simulated phone: it can deliver only to this window's own number. */
function simulatedPhone(destination: string): ServiceCaller {
  return {
    kind: "service",
    tokenId: null,
    scope: "ingest",
    source: simulatorSource,
    projectId: null,
    environment: "test",
    numbers: [destination],
  };
}

/**
 * Simulates the phone in the test environment: the message is processed like any inbound message, to this verification's own
 * destination. It is not a guess, so it neither counts towards muting nor is muted.
 */
export function sendTestMessage(parts: {
  readonly getWindow: GetVerificationWindow;
  readonly takeMessages: TakeInboundMessages;
}): SendTestMessage {
  return async (token, { from, text, carrier }, origin) => {
    const { environment, destination } = await parts.getWindow(token);
    if (environment !== "test") throw new Failure("not_found");
    const message = { messageId: newId(), from, to: destination, text, carrier };
    const call = {
      ...origin,
      caller: simulatedPhone(destination),
      usage: undefined,
      verificationId: undefined,
      projectId: undefined,
      violations: [],
    };
    const { outcome, duplicate } = await new Promise<InboundReceipt>((resolve, reject) => {
      parts.takeMessages([message], call, [{ resolve, reject }], { simulated: true })?.catch(reject);
    });
    return { outcome, duplicate };
  };
}
