import { noSuchVerification } from "../access.ts";
import type { Carrier } from "../carrier.ts";
import { decodeId } from "../ids.ts";
import type { InboundOutcome, PendingReason } from "../inbound-judgement.ts";
import { maskPhone } from "../phone.ts";

export interface HistoricMessage {
  readonly source: string;
  readonly messageId: string;
  /** Null once erased. */
  readonly sender: string | null;
  readonly carrier: Carrier | null;
  /** Null if the source did not say. */
  readonly receivedAt: Date | null;
  readonly ingestedAt: Date;
  readonly outcome: InboundOutcome;
  readonly duplicate: boolean;
}

/** What is known about a verification besides its result. */
export interface VerificationHistory {
  readonly destination: string;
  /** Null in mode `discover`, and once erased. */
  readonly expectedPhone: string | null;
  /** Null while pending. */
  readonly endedAt: Date | null;
  /** The UUID of the webhook's version that was in force at its creation; null if there was none. */
  readonly webhookId: string | null;
  readonly hint: { readonly reason: PendingReason; readonly noticedAt: Date } | null;
  /** The latest messages whose receipt named it, oldest first. */
  readonly messages: readonly HistoricMessage[];
  /** The latest messages on its destination, until its end, whose receipt named no verification, oldest first. */
  readonly unmatched: readonly HistoricMessage[];
}

export interface VerificationHistoryStore {
  /** `id` is a UUID, and at most `limit` messages of each kind are read. Null if there is no such verification. */
  find(id: string, limit: number): Promise<VerificationHistory | null>;
}

export interface VerificationHistories {
  /** By `vrf_…`; with phones masked: whoever answers a question needs no more of a number than its owner can confirm. */
  get(verificationId: string): Promise<VerificationHistory>;
}

const messageLimit = 100;

export function readVerificationHistories(parts: {
  readonly histories: VerificationHistoryStore;
}): VerificationHistories {
  return {
    async get(verificationId) {
      const id = decodeId("vrf_", verificationId);
      const found = id === null ? null : await parts.histories.find(id, messageLimit);
      if (found === null) throw noSuchVerification(verificationId);
      return {
        ...found,
        expectedPhone: masked(found.expectedPhone),
        messages: found.messages.map(withMaskedSender),
        unmatched: found.unmatched.map(withMaskedSender),
      };
    },
  };
}

const masked = (phone: string | null) => phone && maskPhone(phone);

const withMaskedSender = (message: HistoricMessage) => ({ ...message, sender: masked(message.sender) });
