/** A seeded random number generator, so that a run can be repeated. */
export interface Random {
  /** From 0 (inclusive) to 1 (exclusive). */
  next(): number;
  /** A whole number from 0 (inclusive) to `end` (exclusive). */
  below(end: number): number;
  /** A number from `least` (inclusive) to `most` (exclusive). */
  between(least: number, most: number): number;
  chance(probability: number): boolean;
  pick<T>(from: readonly T[]): T;
  shuffle<T>(items: readonly T[]): T[];
  /** A new generator, whose values do not depend on how many more this one generates. */
  fork(): Random;
}

/** Mulberry32: any 32 bits are a seed, and its quality suffices for choosing. */
export function randomOf(seed: number): Random {
  let state = seed >>> 0;
  const next = () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let bits = Math.imul(state ^ (state >>> 15), state | 1);
    bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61);
    return ((bits ^ (bits >>> 14)) >>> 0) / 2 ** 32;
  };
  const below = (end: number) => Math.floor(next() * end);
  return {
    next,
    below,
    between: (least, most) => least + next() * (most - least),
    chance: (probability) => next() < probability,
    pick: <T>(from: readonly T[]) => from[below(from.length)] as T,
    shuffle: <T>(items: readonly T[]) =>
      items
        .map((item) => ({ item, place: next() }))
        .sort((one, other) => one.place - other.place)
        .map(({ item }) => item),
    fork: () => randomOf(below(2 ** 32)),
  };
}

export const newSeed = () => Math.floor(Math.random() * 2 ** 32);
