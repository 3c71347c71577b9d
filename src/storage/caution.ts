/**
 * Whether a batch is taken the careful way. The other way fails as a whole where something stands in its way, and is work
 * in vain then: where one batch has met that, the next ones probably will.
 */
export interface Caution {
  /** For the next batch, which counts as taken. */
  isDue(): boolean;
  /** The other way has failed. */
  learn(): void;
}

const carefulBatches = 16;

export function createCaution(): Caution {
  let left = 0;
  return {
    isDue() {
      if (left === 0) return false;
      left -= 1;
      return true;
    },
    learn() {
      left = carefulBatches;
    },
  };
}
