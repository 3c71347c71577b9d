/**
 * Whether a batch is taken the careful way. The other way fails as a whole where something stands in its way, and is work
 * in vain then: where one batch has met that, the next ones probably will.
 */
export interface Caution {
  /** Whether the batch that is about to be taken goes the careful way; to be asked once for each. */
  takeTurn(): boolean;
  /** The other way has failed. */
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
