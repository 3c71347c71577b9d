/** Latencies when requests arrive at a constant rate, at several shares of the operation's maximum. */

import { setTimeout as delay } from "node:timers/promises";
import { collectGarbage } from "./collect.ts";
import { type LoadResult, median } from "./load.ts";
import type { Arm } from "./operations.ts";
import { settlingMs } from "./rounds.ts";

export interface ArrivalFigures {
  /** The share of the maximum reached with every connection busy. */
  readonly share: number;
  readonly perSecond: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
}

const arrivalShares = [0.25, 0.5, 0.9] as const;
/** The share at which the latency is judged. */
export const judgedShare = 0.5;

const roundMs = 1_200;
/** Rounds at the judged share: in a single round, one stall of the disk would determine the 99th percentile. */
const judgedRounds = 3;
const pauseMs = 200;
/** Prepares more than will be needed. */
const spare = 1.1;

const roundsOf = (share: number) => (share === judgedShare ? judgedRounds : 1);

export async function measureArrivals(arm: Arm, mostPerSecond: number): Promise<ArrivalFigures[]> {
  const { pace } = arm;
  if (pace === undefined) return [];
  const figures: ArrivalFigures[] = [];
  // Prepares for all rounds at once and well in advance: any other work at the same time would add to the latencies.
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

/** The bound on the 99th percentile: three times the median plus five milliseconds. */
export function boundOf({ p50Ms }: ArrivalFigures): number {
  return 3 * p50Ms + 5;
}
