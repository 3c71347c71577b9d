import type { ClaimBounds } from "../core/webhook.ts";

export interface SlotLimits {
  readonly inAll: number;
  /** Limit of all quick endpoints together. Beyond it each may still have one. */
  readonly quickInAll: number;
  /** Limit of all other endpoints together. Beyond it each may still have one. */
  readonly slowInAll: number;
  /** Limit of an endpoint whose last answer was quick. */
  readonly perQuickEndpoint: number;
  /** The maximum to which that limit grows, by one with each event accepted promptly. */
  readonly perPromptEndpoint: number;
  /** Limit of what quick endpoints have beyond `perQuickEndpoint` each, together: no more extra slots can hang at a time. */
  readonly extraInAll: number;
  /** Limit of any other endpoint. */
  readonly perEndpoint: number;
  /** An answer that takes longer is slow; the endpoint counts as slow as soon as an attempt has taken this long. */
  readonly slowAfterMs: number;
  /** An answer that takes longer is not prompt. */
  readonly promptWithinMs: number;
}

/** How many endpoints are remembered as quick; bounded because each claim lists them. */
const maxRemembered = 1_000;

/** When the endpoint's attempts in progress began, by `performance.now()`, oldest first. */
type Begun = Set<{ readonly at: number }>;

/**
 * Limits the attempts in progress, so that an endpoint that hangs delays no other. An endpoint that has never answered, or did
 * not answer quickly last time, has few slots. One that accepts its events promptly gains slots, one at a time, until it
 * refuses an event or takes longer: a project with a thousand events a second needs more than a few, and an endpoint at its
 * capacity shows that by its answers.
 *
 * Invariant: once `quickInAll + slowInAll` slots are taken, an endpoint that has one gets no more. So endpoints that hang hold
 * at most that many plus one each, however many events they have and however prompt they were, and an endpoint with nothing in
 * progress starts at once, as long as fewer hang than there are slots in `inAll` beyond that. The last `quickInAll` slots are
 * reserved for quick endpoints, so that any number of endpoints that have never answered leave room for them.
 *
 * A hanging endpoint counts as quick for at most `slowAfterMs`. Until then it may hold all of `quickInAll`, and each other
 * endpoint has one slot at a time. After that all its attempts count as slow, and the others have their slots back. A total
 * limit alone would not do: a few dozen endpoints that hang at the same moment fill any limit that sockets allow, until their
 * attempts time out.
 */
export class EndpointSlots {
  readonly #limits: SlotLimits;
  readonly #underWay = new Map<string, Begun>();
  /** The limit of each quick endpoint, least recently used first. */
  readonly #quick = new Map<string, number>();
  /** Endpoints with an attempt in progress at some time since the last `claimBounds`. */
  #active = new Set<string>();
  #taken = 0;

  constructor(limits: SlotLimits) {
    this.#limits = limits;
  }

  get free(): number {
    return this.#limits.inAll - this.#taken;
  }

  /** The room for the next claim. Endpoints that hang by now stop counting as quick; the set of active endpoints is reset. */
  claimBounds(): ClaimBounds {
    const { inAll, quickInAll, slowInAll, perQuickEndpoint, extraInAll, perEndpoint, slowAfterMs } =
      this.#limits;
    const slowSince = performance.now() - slowAfterMs;
    let slowTaken = 0;
    for (const [key, begun] of this.#underWay) {
      const [oldest] = begun;
      if (oldest && oldest.at <= slowSince) this.#quick.delete(key);
      if (!this.#quick.has(key)) slowTaken += begun.size;
    }
    const beyondFirst = quickInAll + slowInAll - this.#taken;
    const active = new Set([...this.#active, ...this.#underWay.keys()]);
    this.#active = new Set();
    let extraFree = extraInAll;
    let grown = 0;
    for (const key of active) {
      const most = this.#quick.get(key);
      if (most === undefined) continue;
      extraFree -= Math.max(0, (this.#underWay.get(key)?.size ?? 0) - perQuickEndpoint);
      if (most > perQuickEndpoint) grown++;
    }
    const extraEach = Math.max(0, Math.floor(extraFree / Math.max(1, grown)));
    const named = new Set([...this.#underWay.keys(), ...this.#quick.keys()]);
    const endpoints = [...named].map((endpoint) => {
      const slow = !this.#quick.has(endpoint);
      const taken = this.#underWay.get(endpoint)?.size ?? 0;
      const bound = this.#quick.get(endpoint) ?? perEndpoint;
      const mostNow = Math.max(taken, perQuickEndpoint) + (active.has(endpoint) ? extraEach : 0);
      const most = Math.min(bound, mostNow);
      return { endpoint, slow, underWay: taken, room: Math.max(0, most - taken) };
    });
    return {
      limit: this.free,
      quickLimit: Math.max(0, Math.min(beyondFirst, quickInAll - (this.#taken - slowTaken))),
      slowLimit: Math.max(0, Math.min(beyondFirst, slowInAll - slowTaken)),
      slowFirstLimit: Math.max(0, inAll - quickInAll - slowTaken),
      perEndpoint,
      endpoints,
    };
  }

  /** Takes a slot. The returned function gives it back; `accepted` says whether the endpoint accepted the event. */
  take(key: string): (accepted: boolean) => void {
    const begun: Begun = this.#underWay.get(key) ?? new Set();
    const entry = { at: performance.now() };
    begun.add(entry);
    this.#underWay.set(key, begun);
    this.#active.add(key);
    this.#taken += 1;
    return (accepted) => {
      this.#taken -= 1;
      this.#active.add(key);
      begun.delete(entry);
      if (begun.size === 0) this.#underWay.delete(key);
      const tookMs = performance.now() - entry.at;
      const before = this.#quick.get(key);
      this.#quick.delete(key);
      const { slowAfterMs, promptWithinMs, perQuickEndpoint, perPromptEndpoint } = this.#limits;
      if (tookMs > slowAfterMs) return;
      const grows = before !== undefined && accepted && tookMs <= promptWithinMs;
      this.#remember(key, grows ? Math.min(before + 1, perPromptEndpoint) : perQuickEndpoint);
    };
  }

  #remember(key: string, most: number): void {
    this.#quick.set(key, most);
    if (this.#quick.size <= maxRemembered) return;
    for (const oldest of this.#quick.keys()) {
      this.#quick.delete(oldest);
      return;
    }
  }
}
