/**
 * What becomes of inbound messages, decided one after the other over a state that was read at one moment. Others may change
 * it meanwhile: nothing is stored then, and the messages are judged again. The rules of matching, muting and duplicates are
 * here; of the one case that needs no judging the storage knows by itself (`plain-messages.ts`).
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

/** What a window may say of a message that came and left its verification pending. */
export type PendingReason = "another_number" | "web_sent" | "two_codes" | "without_code" | "muted";

/** What a message was answered. Ids are UUIDs. */
export interface Judgement {
  readonly outcome: InboundOutcome;
  readonly verificationId: string | null;
  readonly duplicate: boolean;
}

/** A message with all that is known of it without asking the database. */
export interface InboundMessage {
  readonly source: string;
  /** Whether its token delivers to some numbers, or one environment, only; others of its source may deliver to more. */
  readonly isBound: boolean;
  /** Null where the message was refused before it could be read: it is kept as invalid, for its id's sake. */
  readonly content: InboundContent | null;
  readonly messageId: string;
}

export interface InboundContent extends Omit<NormalisedInboundMessage, "messageId"> {
  /** The environment of its destination; null where the source has no such number. */
  readonly environment: Environment | null;
  readonly webSent: boolean;
  /** What may be a code in its text, in order. */
  readonly candidates: readonly string[];
  /** There were too many of them. */
  readonly tooManyCandidates: boolean;
  /** Its `fingerprintOf`: SHA-256 in hexadecimal. */
  readonly fingerprint: string;
  /** A window plays the phone: never counted for muting, never muted. */
  readonly played: boolean;
}

/**
 * What makes two messages one content. The environment tells apart what was sent to a number and what was sent to the same
 * digits where they were no number to the sender's token: else a token could keep others' messages from numbers it may not
 * deliver to.
 */
export type FingerprintedContent = Pick<InboundContent, "environment" | "from" | "to" | "text">;

export function fingerprintOf({ environment, from, to, text }: FingerprintedContent): string {
  return hash("sha256", `${environment}\n${to}\n${from}\n${text}`, "hex");
}

/** The verification a code stands for. Times are milliseconds by the database's clock. */
export interface CodeHolder {
  readonly verificationId: string;
  readonly environment: Environment;
  status: VerificationStatus;
  readonly mode: VerificationMode;
  readonly expectedPhone: string | null;
  readonly expiresAt: number;
  /** What its person was to send, where it was over when the state was read. */
  smsText: string | null;
}

export interface Sender {
  readonly environment: Environment;
  readonly phone: string;
  /** The misses of the last `missWindowMs`, oldest first. */
  readonly missTimes: readonly number[];
  readonly mutedUntil: number | null;
}

export interface Answered extends Judgement {
  /** Null where the message could not be read. */
  readonly destination: string | null;
}

/** What the database held at the moment of the read; whoever stores what came of it checks that it still does. Judging changes it. */
export interface InboundState {
  /** Milliseconds since the epoch, by the database's clock. */
  readonly now: number;
  /** By `messageKey`: what messages of these ids have been answered. */
  readonly answered: Map<string, Answered>;
  /** By fingerprint in hexadecimal: what the same content was answered within the last `duplicateWindowMs`. */
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
  /** Whether its id was known: then there is nothing to be stored. */
  readonly repeated: boolean;
  /** Whether its content is the first of its kind within `duplicateWindowMs`. */
  readonly firstOfContent: boolean;
}

/** For so long the same content from the same sender is the same message, whatever its id. */
export const duplicateWindowMs = 60_000;
export const missesUntilMuted = 5;
export const missWindowMs = 600_000;
export const muteMs = 600_000;
/** A message forged to look web-sent must not mute its victim, nor does anything that found its verification. */
const misses: ReadonlySet<InboundOutcome> = new Set(["no_match", "ambiguous", "sender_mismatch"]);

/** Judges messages in the order they are given and stores what comes of it; answers once that is durable. */
export type JudgeInboundMessage = (message: InboundMessage, settle: Settle<Judgement>) => void;

/** What is to be stored, all of it together. */
export interface Judgements {
  readonly judged: readonly JudgedMessage[];
  readonly verified: readonly Verified[];
  /** Verifications that were found past their expiry: nothing may say so before they have been moved. */
  readonly expired: readonly string[];
  /** By `senderKey`. */
  readonly changedSenders: ReadonlySet<string>;
  /** By the verification's id: of messages that carried the code of what is still pending, the last one's reason. */
  readonly hints: ReadonlyMap<string, PendingReason>;
  /**
   * Messages that verified nothing, and were not sent from the web, where a sender can be forged. Where a pending verification
   * expects their sender on their destination, and they did not carry its code, its window says so.
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
      const judgement = isForeign(message, answered) ? answer("invalid") : again(answered);
      return { message, judgement, repeated: true, firstOfContent: false };
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
    if (same) return { judgement: again(same), firstOfContent: false };
    const judgement = judgeContent(content);
    state.fingerprints.set(fingerprint, judgement);
    if ((misses.has(judgement.outcome) || isGuess(content, judgement)) && !content.played) countMiss(content);
    return { judgement, firstOfContent: true };
  }

  /**
   * A code that is over opens nothing, and must not be what guesses beside it go free by. What stands in the text that was to be
   * sent, such as a hotline's number, is none.
   */
  function isGuess(content: InboundContent, { outcome }: Judgement): boolean {
    if (outcome !== "late" && outcome !== "not_pending") return false;
    const unknown = content.candidates.filter(
      (candidate) => !state.codes.has(codeKey(content.to, candidate)),
    );
    if (unknown.length === 0) return false;
    const texts = holdersOf(content).flatMap(({ smsText }) => smsText ?? []);
    return unknown.some((candidate) => !texts.some((text) => mayCarry(text, [candidate])));
  }

  function judgeContent(content: InboundContent): Judgement {
    if (content.environment === null) return answer(content.webSent ? "web_sent" : "no_match");
    const sender = state.senders.get(senderKey(content.environment, content.from));
    const expects = (holder: CodeHolder) => holder.mode !== "match" || holder.expectedPhone === content.from;
    const muted = sender?.mutedUntil != null && sender.mutedUntil > state.now;
    const holders = holdersOf(content);
    const live = holders.filter((holder) => holder.status === "pending" && holder.expiresAt > state.now);
    const holder = live[0] ?? holders[0];
    if (muted && !content.webSent && !content.played) {
      withoutCode.push({ content, reason: "muted" });
      // Who waits for another number has not done wrong with this one.
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
   * The verifications its candidates stand for, each once, in the order of the text. A number may have served the other
   * environment before: what was created on it then is nothing to a message of this one.
   */
  function holdersOf({ environment, to, candidates }: InboundContent): CodeHolder[] {
    const holders: CodeHolder[] = [];
    for (const candidate of candidates) {
      const holder = state.codes.get(codeKey(to, candidate));
      if (holder && holder.environment === environment && !holders.includes(holder)) holders.push(holder);
    }
    return holders;
  }

  function countMiss({ environment, from }: InboundContent): void {
    if (environment === null) return;
    const key = senderKey(environment, from);
    const { missTimes = [], mutedUntil = null } = state.senders.get(key) ?? {};
    const counted = [...missTimes.filter((time) => time > state.now - missWindowMs), state.now];
    const isMuted = counted.length >= missesUntilMuted;
    state.senders.set(key, {
      environment,
      phone: from,
      missTimes: isMuted ? [] : counted,
      mutedUntil: isMuted ? state.now + muteMs : mutedUntil,
    });
    changedSenders.add(key);
  }
}

/** A message that has the id of one to another number is not its repeat, and a token that may not reach that one learns nothing of it. */
function isForeign({ isBound, content }: InboundMessage, { destination }: Answered): boolean {
  return isBound && destination !== null && destination !== content?.to;
}

/** The first receipt, as a repeat gets it. */
function again({ outcome, verificationId }: Judgement): Judgement {
  return { outcome, verificationId, duplicate: true };
}

function answer(outcome: InboundOutcome, holder?: CodeHolder): Judgement {
  return { outcome, verificationId: holder?.verificationId ?? null, duplicate: false };
}
