/**
 * Chooses between a fast path, which fails as a whole on any conflict and is then wasted work, and a careful one. After a batch
 * that met a conflict the next ones probably will too, so they take the careful path.
 */
export interface Caution {
  /** Whether the next batch takes the careful path; call once per batch. */
  takeTurn(): boolean;
  /** The fast path has failed. */
  learn(): void;
}

const carefulBatches = 16;

export function createCaution(): Caution {
  let left = 0;
  return {
    takeTurn() {
      if (left === 0) return false;
      left -= 1;
      return true;
    },
    learn() {
      left = carefulBatches;
    },
  };
}
