import type { ClaimBounds } from "../core/webhook.ts";

export interface SlotLimits {
  readonly inAll: number;
  /** Of all endpoints that are quick, together. Beyond it each may still have one. */
  readonly quickInAll: number;
  /** Of all others alike. */
  readonly slowInAll: number;
  /** Of an endpoint whose last answer was quick. */
  readonly perQuickEndpoint: number;
  /** What that grows to, by one with each event that was taken promptly. */
  readonly perPromptEndpoint: number;
  /** What those that are quick together have beyond `perQuickEndpoint` each: should they hang, it is no more that they take along. */
  readonly extraInAll: number;
  /** Of any other. */
  readonly perEndpoint: number;
  /** An answer that takes longer is slow, and so is its endpoint as soon as it has taken that long. */
  readonly slowAfterMs: number;
  /** One that takes longer is not prompt. */
  readonly promptWithinMs: number;
}

/** Endpoints remembered as quick: each claim names them. */
const maxRemembered = 1_000;

/** When what is under way of an endpoint began, by `performance.now()`: the oldest first. */
type Begun = Set<{ readonly at: number }>;

/**
 * What may be under way at a time, so that an endpoint that hangs holds up nobody else. Whoever has not lately answered
 * quickly, or never yet, has few slots. Whoever takes its events promptly gets more at a time, one by one, until an answer
 * is a refusal or takes longer: a project with a thousand events a second needs more than a few, and an endpoint that has
 * reached what it can do shows that by its answers.
 *
 * Invariant: beyond `quickInAll + slowInAll` nobody gets a slot who has one. So endpoints that hang hold that many and one
 * each, however many events they have and however prompt they were, and whoever has nothing under way begins at once, as
 * long as fewer hang than `inAll` leaves beyond it. The last `quickInAll` of it are for those known to be quick, so that any
 * number of endpoints that have never answered leave room to them.
 *
 * What hangs counts as quick for `slowAfterMs` at most. Until then it may hold all of `quickInAll`, and each of the others
 * has one at a time. From then on all that its endpoint has under way counts as slow, and the others have again what they
 * had. A bound in all would not do alone: a few dozen endpoints that hang at one moment fill any that sockets allow, and
 * hold it until they are cut.
 */
export class EndpointSlots {
  readonly #limits: SlotLimits;
  readonly #underWay = new Map<string, Begun>();
  /** How many of each that is quick; the longest unused first. */
  readonly #quick = new Map<string, number>();
  /** Who has had something under way since the last look. */
  #active = new Set<string>();
  #taken = 0;

  constructor(limits: SlotLimits) {
    this.#limits = limits;
  }

  get free(): number {
    return this.#limits.inAll - this.#taken;
  }

  /** What there is room for now. Who hangs by now is no longer quick, and who was active is asked for since the last look. */
  look(): ClaimBounds {
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

  /** Takes a slot; what is answered gives it back and tells whether the event was taken. */
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
