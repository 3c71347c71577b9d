/** Arrivals at a constant rate, at shares of what the operation reaches at most: how long each waits. */

import { setTimeout as delay } from "node:timers/promises";
import { collectGarbage } from "./collect.ts";
import { type LoadResult, median } from "./load.ts";
import type { Arm } from "./operations.ts";
import { settlingMs } from "./rounds.ts";

export interface ArrivalFigures {
  /** Of the most that was reached with every connection kept busy. */
  readonly share: number;
  readonly perSecond: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
}

const arrivalShares = [0.25, 0.5, 0.9] as const;
/** The share by which the waiting is judged. */
export const judgedShare = 0.5;

const roundMs = 1_200;
/** Of the judged share: in one, a single stall of the disk is the 99th percentile. */
const judgedRounds = 3;
const pauseMs = 200;
/** More is made ready than will be due. */
const spare = 1.1;

const roundsOf = (share: number) => (share === judgedShare ? judgedRounds : 1);

export async function measureArrivals(arm: Arm, mostPerSecond: number): Promise<ArrivalFigures[]> {
  const { pace } = arm;
  if (pace === undefined) return [];
  const figures: ArrivalFigures[] = [];
  // For all rounds at once, and well before them: who arrives here is kept waiting by anything that goes on besides.
  const due = arrivalShares.reduce((sum, share) => sum + share * roundsOf(share), 0) * mostPerSecond;
  await arm.prepare?.(Math.ceil((due * roundMs * spare) / 1_000));
  await delay(2 * settlingMs);
  for (const share of arrivalShares) {
    const perSecond = mostPerSecond * share;
    const rounds: ArrivalFigures[] = [];
    for (let round = 0; round < roundsOf(share); round++) {
      collectGarbage();
      await delay(pauseMs);
      rounds.push(figuresOf(share, await pace(roundMs, perSecond)));
    }
    figures.push(medianOf(share, rounds));
  }
  return figures;
}

function medianOf(share: number, rounds: readonly ArrivalFigures[]): ArrivalFigures {
  const of = (pick: (figures: ArrivalFigures) => number) => median(rounds.map(pick));
  return {
    share,
    perSecond: of(({ perSecond }) => perSecond),
    p50Ms: of(({ p50Ms }) => p50Ms),
    p99Ms: of(({ p99Ms }) => p99Ms),
  };
}

function figuresOf(share: number, { answers, seconds, p50, p99 }: LoadResult): ArrivalFigures {
  return { share, perSecond: answers / seconds, p50Ms: p50, p99Ms: p99 };
}

/** The bound on the 99th percentile: three times the median, and five milliseconds. */
export function boundOf({ p50Ms }: ArrivalFigures): number {
  return 3 * p50Ms + 5;
}
