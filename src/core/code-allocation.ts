/** Decides on which number a new code is issued, and how long the code must be there to be hard to guess. */

import { codeLengthRange, codeSpace } from "./code.ts";
import type { CodeFormat } from "./project.ts";

/** How many of a number's codes of one format and length are taken, as far as this process knows. */
export interface CodeOccupancy {
  /** Codes that have not expired, also those already verified or cancelled: at least as many as an SMS can still match. */
  pending(destination: string, format: CodeFormat, length: number): number;
  /** The pending codes and those in quarantine. */
  barred(destination: string, format: CodeFormat, length: number): number;
  /**
   * Counts a code that is about to be issued, as pending and barred, until the returned function is called. Otherwise any
   * number of concurrent creations would choose a place that has room for one.
   */
  reserve(destination: string, format: CodeFormat, length: number): () => void;
  /** Counts a code that was just issued. */
  add(destination: string, format: CodeFormat, length: number): void;
}

export interface CodePlace {
  readonly destination: string;
  readonly length: number;
}

/** How long after its expiry a code is not issued again on its number. */
export const codeQuarantineHours = 24;

/** With a larger share of pending codes, a blind guess on the number succeeds with a probability above one in a thousand. */
export const crowdedShare = 0.001;
/** With a larger share of taken codes than this, finding a free one at random takes too many tries. */
const fullShare = 0.5;

/**
 * A number that has room for codes of the project's own length, or the shortest longer length for which some number has room:
 * few pending codes, and at most half of the codes pending or in quarantine. If all numbers are crowded even at the longest
 * length, codes are still issued up to that half. Null: no room is left. Chooses among equal numbers at random.
 */
export function allocateCode(
  destinations: readonly string[],
  format: CodeFormat,
  projectLength: number,
  occupancy: Pick<CodeOccupancy, "pending" | "barred">,
): CodePlace | null {
  const lengths: number[] = [];
  for (let length = projectLength; length <= codeLengthRange(format).max; length++) lengths.push(length);
  const isFull = (destination: string, length: number) =>
    occupancy.barred(destination, format, length) >= codeSpace(format, length) * fullShare;
  const isCrowded = (destination: string, length: number) =>
    occupancy.pending(destination, format, length) >= codeSpace(format, length) * crowdedShare;
  return firstRoom((...place) => isCrowded(...place) || isFull(...place)) ?? firstRoom(isFull);

  function firstRoom(isTaken: (destination: string, length: number) => boolean): CodePlace | null {
    for (const length of lengths) {
      const start = Math.floor(Math.random() * destinations.length);
      for (let step = 0; step < destinations.length; step++) {
        const destination = destinations[(start + step) % destinations.length];
        if (destination !== undefined && !isTaken(destination, length)) return { destination, length };
      }
    }
    return null;
  }
}

/**
 * After this many taken codes of one length on one number, the creation treats that length as full there, whatever the last
 * count says. With half of the codes taken, one creation in 4,000 moves on to a longer code or another number without need.
 */
const maxCollisionsPerPlace = 12;

/** The known occupancy, corrected by the taken codes that this creation has encountered. Holds the place of its own code. */
export class ObservedOccupancy {
  current: Pick<CodeOccupancy, "pending" | "barred">;
  readonly #occupancy: CodeOccupancy;
  #release: (() => void) | null = null;
  /** Number of taken codes encountered, by number and length. */
  readonly #taken = new Map<string, number>();

  constructor(occupancy: CodeOccupancy) {
    this.#occupancy = occupancy;
    this.current = occupancy;
  }

  /** Counts the place until it is released, in other creations too. */
  reserve({ destination, length }: CodePlace, format: CodeFormat): void {
    this.#release = this.#occupancy.reserve(destination, format, length);
  }

  /** Also necessary before another place is chosen, in which the creation's own code must not count. */
  release(): void {
    this.#release?.();
    this.#release = null;
  }

  /** Records that this verification's code was taken. */
  recordCollision({ destination, code }: { readonly destination: string; readonly code: string }): void {
    const place = `${destination} ${code.length}`;
    this.#taken.set(place, (this.#taken.get(place) ?? 0) + 1);
    this.current = {
      pending: (...asked) => this.#occupancy.pending(...asked),
      barred: (number, format, length) =>
        (this.#taken.get(`${number} ${length}`) ?? 0) >= maxCollisionsPerPlace
          ? Number.POSITIVE_INFINITY
          : this.#occupancy.barred(number, format, length),
    };
  }
}
