/** How long verifications took, as counts in buckets: what hours and numbers have counted can be added up. */

/** Four buckets for a doubling: a value lies within 9.1 % of its bucket's middle. */
export const bucketsPerDoubling = 4;

/** As the schema has them. The last one ends past the longest validity. The first holds whatever took less than 1.2 s too. */
export const timeBuckets = 48;

/** Of `share` of those counted, the time in seconds that they took at most: 0.5 is the median. Null where none are. */
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
