/**
 * Judges inbound messages one after the other against a snapshot of the database. If another process changes that state
 * meanwhile, nothing is stored and the messages are judged again. The rules for matching, muting and duplicates are here; the
 * storage handles the one case that needs no judgement by itself (`fast-path-messages.ts`).
 */

import { hash } from "node:crypto";
import type { Carrier } from "./carrier.ts";
import type { NormalisedInboundMessage } from "./inbound-message.ts";
import { mayCarry } from "./message-text.ts";
import type { Environment } from "./project.ts";
import type { Settle } from "./settle.ts";
import type { VerificationMode, VerificationStatus } from "./verification.ts";

export type InboundOutcome =
  | "verified"
  | "no_match"
  | "sender_mismatch"
  | "late"
  | "not_pending"
  | "ambiguous"
  | "web_sent"
  | "muted"
  | "invalid";

/** What a window may say about a message that arrived and left its verification pending. */
export type PendingReason = "another_number" | "web_sent" | "two_codes" | "without_code" | "muted";

/** The content of a message's receipt. Ids are UUIDs. */
export interface Judgement {
  readonly outcome: InboundOutcome;
  readonly verificationId: string | null;
  readonly duplicate: boolean;
}

/** A message with everything that is known about it without querying the database. */
export interface InboundMessage {
  readonly source: string;
  /**
   * Whether its token may deliver only to some numbers or to one environment; other tokens of its source may have no such
   * bounds.
   */
  readonly hasRestrictedToken: boolean;
  /** Null if the message was invalid: it is stored as `invalid` nevertheless, so that its id is known. */
  readonly content: InboundContent | null;
  readonly messageId: string;
}

export interface InboundContent extends Omit<NormalisedInboundMessage, "messageId"> {
  /** The environment of its destination; null if the destination is none of the source's numbers. */
  readonly environment: Environment | null;
  readonly webSent: boolean;
  /** Possible codes in its text, in order. */
  readonly candidates: readonly string[];
  /** Whether there were more candidates than `candidateLimit`. */
  readonly tooManyCandidates: boolean;
  /** Its `fingerprintOf`: SHA-256 in hexadecimal. */
  readonly fingerprint: string;
  /** Sent by the simulated phone of a window: never counted towards muting, never muted. */
  readonly simulated: boolean;
}

/**
 * What makes the contents of two messages equal. It includes the environment, which is null where the destination is no number
 * to the sending token: without it, a token could send a copy to a number it may not deliver to, and the genuine message there
 * would be discarded as its duplicate.
 */
export type FingerprintedContent = Pick<InboundContent, "environment" | "from" | "to" | "text">;

export function fingerprintOf({ environment, from, to, text }: FingerprintedContent): string {
  return hash("sha256", `${environment}\n${to}\n${from}\n${text}`, "hex");
}

/** The verification that a code belongs to. Times are milliseconds by the database's clock. */
export interface CodeHolder {
  readonly verificationId: string;
  readonly environment: Environment;
  status: VerificationStatus;
  readonly mode: VerificationMode;
  readonly expectedPhone: string | null;
  readonly expiresAt: number;
  /**
   * The SMS text the user was asked to send; null if the verification could still be verified when the state was read, and no
   * other message has its code.
   */
  smsText: string | null;
}

export interface Sender {
  readonly environment: Environment;
  readonly phone: string;
  /** The misses within `missWindowMs` up to the last one, oldest first: by now they may be older. */
  readonly missTimes: readonly number[];
  readonly mutedUntil: number | null;
}

export interface Answered extends Judgement {
  /** Null if the message was invalid. */
  readonly destination: string | null;
}

/** A snapshot of the database. Judging modifies it; storing the judgements verifies that the database has not changed since. */
export interface InboundState {
  /** Milliseconds since the epoch, by the database's clock. */
  readonly now: number;
  /** By `messageKey`: earlier receipts for these message ids. */
  readonly answered: Map<string, Answered>;
  /** By fingerprint in hexadecimal: earlier receipts for the same content within the last `duplicateWindowMs`. */
  readonly fingerprints: Map<string, Judgement>;
  /** By `senderKey`. */
  readonly senders: Map<string, Sender>;
  /** By `codeKey`. */
  readonly codes: Map<string, CodeHolder>;
}

export const messageKey = (source: string, messageId: string) => `${source}\n${messageId}`;
export const senderKey = (environment: Environment, phone: string) => `${environment}${phone}`;
export const codeKey = (destination: string, code: string) => `${destination} ${code}`;

export interface Verified {
  readonly verificationId: string;
  readonly phone: string;
  readonly carrier: Carrier | null;
}

export interface JudgedMessage {
  readonly message: InboundMessage;
  readonly judgement: Judgement;
  /** Whether its id was already known: then there is nothing to store. */
  readonly repeated: boolean;
  /** Whether it is the first with its content within `duplicateWindowMs`. */
  readonly firstOfContent: boolean;
}

/** Within this time the same content from the same sender counts as the same message, whatever its id. */
export const duplicateWindowMs = 60_000;
export const missesUntilMuted = 5;
export const missWindowMs = 600_000;
export const muteMs = 600_000;
/**
 * How far a stored time may be ahead of the database's clock, which is corrected now and then. What is further ahead was stored
 * while the clock was wrong, and is ignored: otherwise a sender muted by a clock an hour ahead would be mute for over an hour.
 */
export const maxAheadMs = 60_000;
/**
 * The outcomes that count towards muting. `web_sent` does not: anybody could mute a victim with messages forged in its name.
 * Nor does a message that carries the code of a verification that is over, unless it is a guess (`isGuess`).
 */
const misses: ReadonlySet<InboundOutcome> = new Set(["no_match", "ambiguous", "sender_mismatch"]);

/** Judges messages in the order of the calls and stores the results; settles each once its effect is durable. */
export type JudgeInboundMessage = (message: InboundMessage, settle: Settle<Judgement>) => void;

/** Everything to be stored, atomically. */
export interface Judgements {
  readonly judged: readonly JudgedMessage[];
  readonly verified: readonly Verified[];
  /** Verifications found past their expiry while still pending: they must be moved to `expired` before any receipt says so. */
  readonly expired: readonly string[];
  /** By `senderKey`. */
  readonly changedSenders: ReadonlySet<string>;
  /** By verification id: of the messages that carried the code of a verification still pending, the last one's reason. */
  readonly hints: ReadonlyMap<string, PendingReason>;
  /**
   * Messages that verified nothing and were not sent from the web, where the sender can be forged. If a pending verification
   * expects this sender on this destination, and the message did not carry its code, its window shows the reason.
   */
  readonly withoutCode: readonly WithoutCode[];
}

export interface WithoutCode {
  readonly content: InboundContent;
  readonly reason: Extract<PendingReason, "without_code" | "muted">;
}

/** Judges messages in the order of their arrival. */
export function judge(messages: readonly InboundMessage[], state: InboundState): Judgements {
  const verified: Verified[] = [];
  const expired: string[] = [];
  const changedSenders = new Set<string>();
  const hints = new Map<string, PendingReason>();
  const withoutCode: WithoutCode[] = [];
  const judged = messages.map((message): JudgedMessage => {
    const key = messageKey(message.source, message.messageId);
    const answered = state.answered.get(key);
    if (answered) {
      return { message, judgement: answerRepeat(message, answered), repeated: true, firstOfContent: false };
    }
    const { judgement, firstOfContent } = judgeNew(message.content);
    state.answered.set(key, { ...judgement, destination: message.content?.to ?? null });
    return { message, judgement, repeated: false, firstOfContent };
  });
  return { judged, verified, expired, changedSenders, hints, withoutCode };

  function judgeNew(content: InboundContent | null): { judgement: Judgement; firstOfContent: boolean } {
    if (content === null) return { judgement: answer("invalid"), firstOfContent: false };
    const fingerprint = content.fingerprint;
    const same = state.fingerprints.get(fingerprint);
    // The simulated phone is never muted, not even as the repeat of a real phone's message that was.
    const isRepeat = same !== undefined && !(content.simulated && same.outcome === "muted");
    if (isRepeat) return { judgement: again(same), firstOfContent: false };
    const judgement = judgeContent(content);
    state.fingerprints.set(fingerprint, judgement);
    if ((misses.has(judgement.outcome) || isGuess(content, judgement)) && !content.simulated)
      countMiss(content);
    return { judgement, firstOfContent: same === undefined };
  }

  /**
   * Whether a message with the code of a verification that is over also tries other codes. Without this, such a code would let
   * the guesses beside it go uncounted. Groups that are part of the text the user was asked to send, such as a hotline's
   * number, are not guesses, nor are pieces of such a code itself.
   */
  function isGuess(content: InboundContent, { outcome }: Judgement): boolean {
    if (outcome !== "late" && outcome !== "not_pending") return false;
    const unknown = withoutPieces(content).filter(
      (candidate) => !state.codes.has(codeKey(content.to, candidate)),
    );
    if (unknown.length === 0) return false;
    const texts = holdersOf(content).flatMap(({ smsText }) => smsText ?? []);
    return unknown.some((candidate) => !texts.some((text) => mayCarry(text, [candidate])));
  }

  function judgeContent(content: InboundContent): Judgement {
    if (content.environment === null) return answerUndeliverable(content);
    const sender = state.senders.get(senderKey(content.environment, content.from));
    const expects = (holder: CodeHolder) => holder.mode !== "match" || holder.expectedPhone === content.from;
    const muted = isMuted(sender);
    const holders = holdersOf(content);
    const live = holders.filter(isLive);
    const holder = live[0] ?? holders[0];
    if (muted && !content.webSent && !content.simulated) {
      withoutCode.push({ content, reason: "muted" });
      // A verification that expects another sender is not affected by this one's muting: the wrong number is the reason shown.
      for (const one of live) hint([one], expects(one) ? "muted" : "another_number");
      return answer("muted");
    }
    if (content.webSent) {
      hint(live, "web_sent");
      return answer("web_sent", live.length === 1 ? holder : undefined);
    }
    const isAmbiguous = content.tooManyCandidates || live.length > 1;
    if (holder && live.length === 1 && expects(holder) && !isAmbiguous) {
      holder.status = "verified";
      verified.push({ verificationId: holder.verificationId, phone: content.from, carrier: content.carrier });
      return answer("verified", holder);
    }
    withoutCode.push({ content, reason: "without_code" });
    if (isAmbiguous) {
      hint(live, "two_codes");
      return answer("ambiguous");
    }
    if (!holder) return answer("no_match");
    if (live.length === 0) return answerDead(holder);
    hint(live, "another_number");
    return answer("sender_mismatch", holder);
  }

  function isMuted(sender: Sender | undefined): boolean {
    const leftMs = (sender?.mutedUntil ?? 0) - state.now;
    return leftMs > 0 && leftMs <= muteMs + maxAheadMs;
  }

  function hint(holders: readonly CodeHolder[], reason: PendingReason): void {
    for (const { verificationId } of holders) hints.set(verificationId, reason);
  }

  function answerDead(holder: CodeHolder): Judgement {
    if (holder.status === "pending") {
      holder.status = "expired";
      expired.push(holder.verificationId);
    }
    return answer(holder.status === "expired" ? "late" : "not_pending", holder);
  }

  /**
   * The verifications whose codes are among the candidates, each once, in the order of the text. A number may have served the
   * other environment before; verifications created on it then do not match.
   */
  function holdersOf(content: InboundContent): CodeHolder[] {
    const holders: CodeHolder[] = [];
    for (const candidate of withoutPieces(content)) {
      const holder = holderOf(content, candidate);
      if (holder && !holders.includes(holder)) holders.push(holder);
    }
    return holders;
  }

  function holderOf({ environment, to }: InboundContent, candidate: string): CodeHolder | undefined {
    const holder = state.codes.get(codeKey(to, candidate));
    return holder?.environment === environment ? holder : undefined;
  }

  function isLive(holder: CodeHolder): boolean {
    return holder.status === "pending" && holder.expiresAt > state.now;
  }

  /**
   * The candidates without pieces of the code of a verification that is over: typed as `1 2 3 4 5 6 7 8`, a code also makes
   * shorter candidates. They count as no guess, so they must not match either: otherwise such a code, sent again and again, could
   * try its pieces without limit.
   */
  function withoutPieces(content: InboundContent): readonly string[] {
    const { candidates } = content;
    if (candidates.length < 2) return candidates;
    const ended = candidates.filter((candidate) => {
      const holder = holderOf(content, candidate);
      return holder && !isLive(holder);
    });
    return candidates.filter(
      (candidate) => !ended.some((code) => code !== candidate && code.includes(candidate)),
    );
  }

  function countMiss({ environment, from }: InboundContent): void {
    if (environment === null) return;
    const key = senderKey(environment, from);
    const { missTimes = [], mutedUntil = null } = state.senders.get(key) ?? {};
    const isRecent = (time: number) => time > state.now - missWindowMs && time <= state.now + maxAheadMs;
    const counted = [...missTimes.filter(isRecent), state.now];
    const isLast = counted.length >= missesUntilMuted;
    state.senders.set(key, {
      environment,
      phone: from,
      missTimes: isLast ? [] : counted,
      mutedUntil: isLast ? state.now + muteMs : mutedUntil,
    });
    changedSenders.add(key);
  }
}

/**
 * Answers a message whose id is known. A token restricted to certain numbers must learn nothing about a message to any other:
 * neither by using that message's id for a number of its own, nor by repeating the message as it was.
 */
function answerRepeat({ hasRestrictedToken: isBound, content }: InboundMessage, first: Answered): Judgement {
  if (!isBound || first.destination === null) return again(first);
  if (content?.to !== first.destination) return answer("invalid");
  return again(content.environment === null ? answerUndeliverable(content) : first);
}

/** The receipt of a message to a number that is none of the service's, or none that its token may deliver to. */
function answerUndeliverable({ webSent }: InboundContent): Judgement {
  return answer(webSent ? "web_sent" : "no_match");
}

/** The first receipt, marked as a duplicate. */
function again({ outcome, verificationId }: Judgement): Judgement {
  return { outcome, verificationId, duplicate: true };
}

function answer(outcome: InboundOutcome, holder?: CodeHolder): Judgement {
  return { outcome, verificationId: holder?.verificationId ?? null, duplicate: false };
}
