/**
 * A minimal model of the rules for calls and messages that arrive one after the other: no locks, no statements, one
 * clock.
 */

export type Status = "pending" | "verified" | "expired" | "cancelled";

export interface Creation {
  readonly mode: "discover" | "match";
  readonly expected_phone: string;
  readonly client_reference: string;
}

export interface ModelVerification extends Creation {
  readonly id: string;
  readonly to: string;
  readonly code: string;
  readonly text: string;
  readonly createdAt: number;
  status: Status;
  phone: string | null;
  carrier: string | null;
  verifiedAt: number | null;
}

export interface ModelMessage {
  readonly messageId: string;
  readonly from: string;
  readonly to: string;
  readonly text: string;
  /** The carrier that the message's carrier field stands for. */
  readonly carrier: string | null;
  /** The verifications whose codes the text contains, in their order. */
  readonly codesOf: readonly ModelVerification[];
  readonly webSent: boolean;
}

export interface ModelReceipt {
  readonly outcome: string;
  readonly verificationId: string;
  readonly duplicate: boolean;
}

interface KeyRecord {
  readonly createdAt: number;
  readonly request: Creation;
  /** The first response, byte for byte. */
  readonly answer: string;
}

const minute = 60_000;
const day = 86_400_000;
const misses = new Set(["NO_MATCH", "AMBIGUOUS", "SENDER_MISMATCH"]);

export class Model {
  now: number;
  readonly verifications: ModelVerification[] = [];
  readonly #validityMs: number;
  readonly #calls = new Map<string, number>();
  readonly #keys = new Map<string, KeyRecord>();
  readonly #receipts = new Map<string, ModelReceipt>();
  readonly #contents = new Map<string, { at: number; receipt: ModelReceipt }>();
  readonly #missTimes = new Map<string, number[]>();
  readonly #mutedUntil = new Map<string, number>();

  constructor(now: number, validityMs: number) {
    this.now = now;
    this.#validityMs = validityMs;
  }

  /** Counts a call; returns the number of calls in this calendar month in Seoul. */
  call(): number {
    const month = new Date(this.now + 9 * 3_600_000).toISOString().slice(0, 7);
    const calls = (this.#calls.get(month) ?? 0) + 1;
    this.#calls.set(month, calls);
    return calls;
  }

  /** What a creation must answer: the first response again, a conflict, or something new. */
  create(
    key: string,
    request: Creation,
  ): { readonly status: 200; readonly text: string } | { readonly status: 201 | 409 } {
    const record = this.#keys.get(key);
    if (!record || record.createdAt <= this.now - day) return { status: 201 };
    const same = JSON.stringify(record.request) === JSON.stringify(request);
    return same ? { status: 200, text: record.answer } : { status: 409 };
  }

  created(
    key: string,
    request: Creation,
    answer: string,
    issued: Pick<ModelVerification, "id" | "to" | "code" | "text">,
  ): ModelVerification {
    const verification: ModelVerification = {
      ...request,
      ...issued,
      createdAt: this.now,
      status: "pending",
      phone: null,
      carrier: null,
      verifiedAt: null,
    };
    this.#keys.set(key, { createdAt: this.now, request, answer });
    this.verifications.push(verification);
    return verification;
  }

  expiresAt(verification: ModelVerification): number {
    return verification.createdAt + this.#validityMs;
  }

  /** The status as of now: a pending verification past its expiry becomes expired. */
  look(verification: ModelVerification): Status {
    if (verification.status === "pending" && this.now >= this.expiresAt(verification)) {
      verification.status = "expired";
    }
    return verification.status;
  }

  /** Whether a cancel succeeds. */
  cancel(verification: ModelVerification): boolean {
    if (this.look(verification) === "pending") verification.status = "cancelled";
    return verification.status === "cancelled";
  }

  receive(message: ModelMessage): ModelReceipt {
    const repeated = this.#receipts.get(message.messageId);
    if (repeated) return { ...repeated, duplicate: true };
    const receipt = this.#judgeContent(message);
    this.#receipts.set(message.messageId, receipt);
    return receipt;
  }

  #judgeContent(message: ModelMessage): ModelReceipt {
    const content = JSON.stringify([message.to, message.from, message.text]);
    const same = this.#contents.get(content);
    if (same && this.now - same.at < minute) return { ...same.receipt, duplicate: true };
    const receipt = this.#judge(message);
    this.#contents.set(content, { at: this.now, receipt });
    if (misses.has(receipt.outcome)) this.#miss(message.from);
    return receipt;
  }

  #judge({ from, carrier, codesOf, webSent }: ModelMessage): ModelReceipt {
    const answer = (outcome: string, about?: ModelVerification): ModelReceipt => ({
      outcome,
      verificationId: about?.id ?? "",
      duplicate: false,
    });
    const live = codesOf.filter((verification) => this.look(verification) === "pending");
    const [found] = live;
    if (webSent) return answer("WEB_SENT", live.length === 1 ? found : undefined);
    if ((this.#mutedUntil.get(from) ?? 0) > this.now) return answer("MUTED");
    if (live.length > 1) return answer("AMBIGUOUS");
    if (!found) {
      const [dead] = codesOf;
      if (!dead) return answer("NO_MATCH");
      return answer(dead.status === "expired" ? "LATE" : "NOT_PENDING", dead);
    }
    if (found.mode === "match" && found.expected_phone !== from) return answer("SENDER_MISMATCH", found);
    Object.assign(found, { status: "verified", phone: from, carrier, verifiedAt: this.now });
    return answer("VERIFIED", found);
  }

  #miss(from: string): void {
    const recent = (this.#missTimes.get(from) ?? []).filter((time) => time > this.now - 10 * minute);
    recent.push(this.now);
    if (recent.length === 5) this.#mutedUntil.set(from, this.now + 10 * minute);
    this.#missTimes.set(from, recent.length === 5 ? [] : recent);
  }
}
