/** Histogram of how long verifications took. The bucket counts of several hours or numbers can be added up. */

/** Four buckets per doubling: a value lies within 9.1 % of the middle of its bucket. */
export const bucketsPerDoubling = 4;

/** As in the database schema. The last bucket ends beyond the longest validity; the first also holds everything below 1.2 s. */
export const timeBuckets = 48;

/**
 * The time in seconds within which `share` of the counted verifications were verified: 0.5 is the median. Null if none are
 * counted.
 */
export function timeToVerify(counts: readonly number[], share: number): number | null {
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (total === 0) return null;
  const rank = Math.ceil(total * share);
  let passed = 0;
  const bucket = counts.findIndex((count) => {
    passed += count;
    return passed >= rank;
  });
  return bucket === 0 ? 1 : 2 ** ((bucket + 0.5) / bucketsPerDoubling);
}

export const noTimes: readonly number[] = new Array(timeBuckets).fill(0);
