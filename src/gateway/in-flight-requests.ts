/** Counts the requests in progress that wait for this process. */

/**
 * A request that takes longer than this most likely waits for a lock, or for its client to take the response, and does
 * not count. Unless most responses took as long: then all of them wait for this process.
 */
const spanMs = 1_000;
/** A request that takes longer than this does not count, however long others take. */
const longestMs = 8_000;
const slotMs = 100;
const youngSlots = spanMs / slotMs;
const slots = longestMs / slotMs;

/** The share of responses that took longer than `spanMs` is averaged over about this many. */
const rememberedAnswers = 256;

export interface InFlightRequests {
  /** A request begins at `at`, in the clock's milliseconds. */
  begun(at: number): void;
  /** A request is over at `at`, in the clock's milliseconds. `isTypical`: its duration shows how long others take. */
  over(begunAt: number, at: number, isTypical: boolean): void;
  /** How many requests count at `now`. */
  count(now: number): number;
}

export function trackInFlightRequests(): InFlightRequests {
  /** Requests in progress, by the slot in which they began. */
  const begunIn = new Array<number>(slots).fill(0);
  let newestSlot = 0;
  let young = 0;
  let all = 0;
  let agedShare = 0;

  const slotOf = (at: number) => Math.floor(at / slotMs);
  const inSlot = (slot: number) => begunIn[slot % slots] as number;

  function countUpTo(now: number): void {
    const slot = slotOf(now);
    if (slot > newestSlot + slots) {
      begunIn.fill(0);
      young = 0;
      all = 0;
      newestSlot = slot;
    }
    while (newestSlot < slot) {
      newestSlot++;
      if (newestSlot >= youngSlots) young -= inSlot(newestSlot - youngSlots);
      all -= inSlot(newestSlot);
      begunIn[newestSlot % slots] = 0;
    }
  }

  function add(at: number, count: 1 | -1): void {
    const slot = slotOf(at);
    if (slot <= newestSlot - slots) return;
    begunIn[slot % slots] = inSlot(slot) + count;
    all += count;
    if (slot > newestSlot - youngSlots) young += count;
  }

  return {
    begun(at) {
      countUpTo(at);
      add(at, 1);
    },
    over(begunAt, at, isTypical) {
      countUpTo(at);
      add(begunAt, -1);
      if (isTypical) agedShare += (Number(at - begunAt > spanMs) - agedShare) / rememberedAnswers;
    },
    count(now) {
      countUpTo(now);
      return agedShare > 0.5 ? all : young;
    },
  };
}
