import { Failure } from "../../failures.ts";
import { noSuchVerification } from "../access.ts";
import { decodeId } from "../ids.ts";
import { maskPhone, normaliseMobile, notMobile } from "../phone.ts";
import type { AuditStore } from "./audit.ts";

/** The number of erased entries. */
export interface Erasure {
  /** Verifications that had a phone or were pending. */
  readonly verifications: number;
  /** Those of them that were pending and are now cancelled. */
  readonly cancelled: number;
  readonly messages: number;
  /** Stored responses of webhook endpoints, which may echo a phone. */
  readonly webhookAnswers: number;
}

export interface ErasureStore {
  /** A verification's project; null where there is no such verification. Ids are UUIDs. */
  projectOf(verificationId: string): Promise<string | null>;
  eraseVerification(verificationId: string): Promise<Erasure>;
  /** Erases batch by batch; yields each batch's counts. */
  erasePhone(phone: string): AsyncIterable<Erasure>;
}

export interface Erasures {
  /** `vrf_…` */
  eraseVerification(id: string): Promise<Erasure>;
  /** Erases batch by batch, until everything is erased or `signal` aborts; yields the running totals, at least once. */
  erasePhone(phone: string, signal: AbortSignal): AsyncIterable<Erasure>;
}

const nothing: Erasure = { verifications: 0, cancelled: 0, messages: 0, webhookAnswers: 0 };

/** An erasure takes many transactions, so it is audited before the first one. */
export function administerErasures(parts: {
  readonly erasures: ErasureStore;
  readonly audit: AuditStore;
}): Erasures {
  const { erasures, audit } = parts;
  return {
    async eraseVerification(id) {
      const uuid = decodeId("vrf_", id);
      const projectId = uuid === null ? null : await erasures.projectOf(uuid);
      if (uuid === null || projectId === null) {
        throw noSuchVerification(id);
      }
      await audit.add({ action: "data.erased", subject: id, projectId, details: {} });
      return erasures.eraseVerification(uuid);
    },

    async *erasePhone(text, signal) {
      const phone = normaliseMobile(text);
      if (phone === null) {
        throw new Failure("validation_failed", { fields: [notMobile("phone")] });
      }
      await audit.add({ action: "data.erased", subject: maskPhone(phone), projectId: null, details: {} });
      let sum = nothing;
      yield sum;
      for await (const erased of erasures.erasePhone(phone)) {
        signal.throwIfAborted();
        sum = sumOf(sum, erased);
        yield sum;
      }
    },
  };
}

function sumOf(one: Erasure, other: Erasure): Erasure {
  return {
    verifications: one.verifications + other.verifications,
    cancelled: one.cancelled + other.cancelled,
    messages: one.messages + other.messages,
    webhookAnswers: one.webhookAnswers + other.webhookAnswers,
  };
}
