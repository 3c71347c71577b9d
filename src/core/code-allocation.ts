/** Where a new code may wait: on which number, and how long it must be to be hard to guess there. */

import { codeLengthRange, codeSpace } from "./code.ts";
import type { CodeFormat } from "./project.ts";

/** How much of a number's codes of one format and length is taken, as far as this process knows. */
export interface CodeOccupancy {
  /** Codes that an SMS could still match. */
  pending(destination: string, format: CodeFormat, length: number): number;
  /** These, and those in quarantine. */
  barred(destination: string, format: CodeFormat, length: number): number;
  /** A code was handed out. */
  add(destination: string, format: CodeFormat, length: number): void;
}

export interface CodePlace {
  readonly destination: string;
  readonly length: number;
}

/** For so long after its expiry a code is not handed out again on its number. */
export const codeQuarantineHours = 24;

/** A blind guess on a number with more pending codes than this has better odds than a thousand to one. */
export const crowdedShare = 0.001;
/** Finding a free code at random takes more tries than it is worth. */
const fullShare = 0.5;

/**
 * A number with room for the project's own code length, or the shortest longer one for which there is room
 * somewhere: few codes pending there, and no more than half in use or in quarantine. Where even the longest codes are
 * crowded everywhere, room that is left is used up to that half. Null: nothing is left. Spreads over equal numbers at random.
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
