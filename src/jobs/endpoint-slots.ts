import type { ClaimBounds } from "../core/webhook.ts";

export interface SlotLimits {
  readonly inAll: number;
  readonly perEndpoint: number;
  readonly perSlowEndpoint: number;
  readonly slowInAll: number;
  /** An endpoint that takes longer is slow, until it has once been quicker. */
  readonly slowAfterMs: number;
}

/** Endpoints remembered as slow though nothing of theirs is under way: each claim names them. */
const maxRemembered = 1_000;

interface Endpoint {
  /** When what is under way began, by `performance.now()`. */
  readonly begun: Set<{ readonly at: number }>;
  slow: boolean;
}

/**
 * What may be under way at a time, so that an endpoint that hangs holds up nobody else: each has few slots, a slow one fewer,
 * and all slow ones together leave half of them to the others.
 */
export class EndpointSlots {
  readonly #limits: SlotLimits;
  /** Those that have something under way or are slow; the longest unused first. */
  readonly #endpoints = new Map<string, Endpoint>();
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
    const { perEndpoint, perSlowEndpoint, slowInAll, slowAfterMs } = this.#limits;
    const slowSince = performance.now() - slowAfterMs;
    let slowTaken = 0;
    for (const endpoint of this.#endpoints.values()) {
      const [oldest] = endpoint.begun;
      if (oldest && oldest.at <= slowSince) endpoint.slow = true;
      if (endpoint.slow) slowTaken += endpoint.begun.size;
    }
    const slowLimit = Math.max(0, slowInAll - slowTaken);
    const endpoints = [...this.#endpoints].map(([endpoint, { begun, slow }]) => ({
      endpoint,
      slow,
      room: slow && slowLimit === 0 ? 0 : Math.max(0, (slow ? perSlowEndpoint : perEndpoint) - begun.size),
    }));
    return { limit: this.free, slowLimit, perEndpoint, endpoints };
  }

  /** Takes a slot; what is answered gives it back. */
  take(key: string): () => void {
    const endpoint = this.#endpoints.get(key) ?? { begun: new Set(), slow: false };
    const entry = { at: performance.now() };
    endpoint.begun.add(entry);
    this.#endpoints.set(key, endpoint);
    this.#taken += 1;
    return () => {
      this.#taken -= 1;
      endpoint.begun.delete(entry);
      endpoint.slow = performance.now() - entry.at > this.#limits.slowAfterMs;
      if (endpoint.begun.size > 0) return;
      this.#endpoints.delete(key);
      if (endpoint.slow) this.#remember(key, endpoint);
    };
  }

  #remember(key: string, endpoint: Endpoint): void {
    this.#endpoints.set(key, endpoint);
    if (this.#endpoints.size <= maxRemembered) return;
    for (const [oldest, { begun }] of this.#endpoints) {
      if (begun.size > 0) continue;
      this.#endpoints.delete(oldest);
      return;
    }
  }
}
