import type { ClaimBounds } from "../core/webhook.ts";

export interface SlotLimits {
  readonly inAll: number;
  /** Of an endpoint whose last answer was quick. */
  readonly perQuickEndpoint: number;
  /** Of any other. */
  readonly perEndpoint: number;
  /** Of all that are not known to be quick, together. */
  readonly slowInAll: number;
  /** An answer that takes longer is slow. */
  readonly slowAfterMs: number;
}

/** Endpoints remembered as quick: each claim names them. */
const maxRemembered = 1_000;

interface Endpoint {
  /** When what is under way began, by `performance.now()`. */
  readonly begun: Set<{ readonly at: number }>;
}

/**
 * What may be under way at a time, so that an endpoint that hangs holds up nobody else. Whoever has not lately answered
 * quickly, or never yet, has few slots, and all of them together leave a part of what there is to those who have: else
 * a few dozen endpoints that hang, not yet known to, would take everything until they are cut.
 */
export class EndpointSlots {
  readonly #limits: SlotLimits;
  readonly #underWay = new Map<string, Endpoint>();
  /** The longest unused first. */
  readonly #quick = new Set<string>();
  #taken = 0;

  constructor(limits: SlotLimits) {
    this.#limits = limits;
  }

  get free(): number {
    return this.#limits.inAll - this.#taken;
  }

  get taken(): number {
    return this.#taken;
  }

  /** What there is room for now. */
  bounds(): ClaimBounds {
    const { perQuickEndpoint, perEndpoint, slowInAll, slowAfterMs } = this.#limits;
    const slowSince = performance.now() - slowAfterMs;
    let slowTaken = 0;
    for (const [key, { begun }] of this.#underWay) {
      const [oldest] = begun;
      if (oldest && oldest.at <= slowSince) this.#quick.delete(key);
      if (!this.#quick.has(key)) slowTaken += begun.size;
    }
    const slowLimit = Math.max(0, slowInAll - slowTaken);
    const named = new Set([...this.#underWay.keys(), ...this.#quick]);
    const endpoints = [...named].map((endpoint) => {
      const slow = !this.#quick.has(endpoint);
      const taken = this.#underWay.get(endpoint)?.begun.size ?? 0;
      const most = slow ? perEndpoint : perQuickEndpoint;
      return { endpoint, slow, room: slow && slowLimit === 0 ? 0 : Math.max(0, most - taken) };
    });
    return { limit: this.free, slowLimit, perEndpoint, endpoints };
  }

  /** Takes a slot; what is answered gives it back. */
  take(key: string): () => void {
    const endpoint = this.#underWay.get(key) ?? { begun: new Set() };
    const entry = { at: performance.now() };
    endpoint.begun.add(entry);
    this.#underWay.set(key, endpoint);
    this.#taken += 1;
    return () => {
      this.#taken -= 1;
      endpoint.begun.delete(entry);
      if (endpoint.begun.size === 0) this.#underWay.delete(key);
      this.#quick.delete(key);
      if (performance.now() - entry.at <= this.#limits.slowAfterMs) this.#remember(key);
    };
  }

  #remember(key: string): void {
    this.#quick.add(key);
    if (this.#quick.size <= maxRemembered) return;
    for (const oldest of this.#quick) {
      this.#quick.delete(oldest);
      return;
    }
  }
}
