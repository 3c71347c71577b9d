/**
 * Chooses between a fast path, which fails as a whole on any conflict and is then wasted work, and a careful one. After a batch
 * that met a conflict the next ones probably will too, so they take the careful path.
 */
export interface FastPathGuard {
  /** Whether the next batch takes the careful path; call once per batch. */
  mustSkip(): boolean;
  /** The fast path has failed. */
  recordConflict(): void;
}

const carefulBatches = 16;

export function createFastPathGuard(): FastPathGuard {
  let left = 0;
  return {
    mustSkip() {
      if (left === 0) return false;
      left -= 1;
      return true;
    },
    recordConflict() {
      left = carefulBatches;
    },
  };
}
