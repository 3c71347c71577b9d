/**
 * Options of an `LRUCache` that holds at most `entries`. With `max` instead, the cache would allocate room for all of them when
 * it is made, which takes milliseconds of every start.
 */
export const atMost = (entries: number) => ({ maxSize: entries, sizeCalculation: () => 1 });
