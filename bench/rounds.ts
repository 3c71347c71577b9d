/** Measures arms in turn, round after round, and takes medians. */

import os from "node:os";
import { setTimeout as delay } from "node:timers/promises";
import { collectGarbage } from "./collect.ts";
import { median } from "./load.ts";
import type { Arm, ArmName } from "./operations.ts";
import { machineClock } from "./process-cpu.ts";

/** One round, or the medians of several. CPU times are microseconds per request; null: not known. */
export interface Figures {
  readonly perSecond: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
  readonly serverCpu: number | null;
  readonly postgresCpu: number | null;
  readonly loadCpu: number;
  /** The share of the machine's CPU that all other processes used meanwhile. */
  readonly others: number | null;
}

export interface ArmFigures {
  readonly arm: ArmName;
  readonly medians: Figures;
  readonly rounds: readonly Figures[];
}

/** V8 needs some ten thousand requests until it has optimized the code they run. */
const longestWarmUpMs = 3_000;
/** Pause before each measurement, for leftover work of the last one. */
const pauseMs = 200;
/**
 * Pause after preparing, which causes work that must not be measured: after bulk inserts Postgres replans its statements and
 * the service counts the rows for its statistics. Since each round prepares all arms before it measures the ceiling, the later
 * arms have the ceiling's measurement as additional time.
 */
export const settlingMs = 500;

/** A share of the machine's CPU: a round in which other processes used more is repeated. */
const disturbingShare = 0.1;
/** The maximum share of repeated rounds, relative to the requested number. */
const maxRepeatedShare = 0.6;

/**
 * The machine's other load drifts during a run and affects neighbouring measurements alike: hence arms in turn, and ratios
 * within one round. Only the rounds with the least other load count; the selection never depends on their figures.
 */
export async function measureInTurn(
  arms: readonly Arm[],
  options: { readonly rounds: number; readonly seconds: number },
): Promise<ArmFigures[]> {
  const milliseconds = options.seconds * 1000;
  for (const arm of arms) {
    await makeReady([arm]);
    await measure(arm, Math.min(longestWarmUpMs, milliseconds * 4));
  }
  const made: Figures[][] = [];
  let undisturbed = 0;
  const atMost = Math.ceil(options.rounds * (1 + maxRepeatedShare));
  while (undisturbed < options.rounds && made.length < atMost) {
    await makeReady(arms);
    const round: Figures[] = [];
    for (const arm of arms) round.push(await measure(arm, milliseconds));
    made.push(round);
    if (disturbance(round) <= disturbingShare) undisturbed++;
  }
  const counted = made
    .toSorted((one, other) => disturbance(one) - disturbance(other))
    .slice(0, options.rounds);
  return arms.map(({ name }, index) => {
    const rounds = counted.map((round) => round[index]).filter((figures) => figures !== undefined);
    return { arm: name, medians: mediansOf(rounds), rounds };
  });
}

function disturbance(round: readonly Figures[]): number {
  return Math.max(...round.map(({ others }) => others ?? 0));
}

/** The median of the ratios within each round. */
export function ratioOf(figures: readonly ArmFigures[], arm: ArmName, to: ArmName): number | null {
  const above = figures.find((candidate) => candidate.arm === arm);
  const below = figures.find((candidate) => candidate.arm === to);
  if (above === undefined || below === undefined) return null;
  return median(
    above.rounds.map(({ perSecond }, i) => perSecond / (below.rounds[i]?.perSecond ?? Number.NaN)),
  );
}

async function makeReady(arms: readonly Arm[]): Promise<void> {
  const made = arms.filter(({ prepare }) => prepare !== undefined);
  for (const arm of made) await arm.prepare?.();
  if (made.length > 0) await delay(settlingMs);
}

async function measure(arm: Arm, milliseconds: number): Promise<Figures> {
  collectGarbage();
  await delay(pauseMs);
  const serverBefore = arm.cpu();
  const postgresBefore = arm.postgresCpu();
  const machineBefore = machineClock();
  const { answers, seconds, p50, p99, cpuMicroseconds } = await arm.run(milliseconds);
  const server = since(serverBefore, arm.cpu());
  const postgres = since(postgresBefore, arm.postgresCpu());
  const machine = since(machineBefore, machineClock());
  const others = machine === null ? null : machine - (server ?? 0) - (postgres ?? 0) - cpuMicroseconds;
  return {
    perSecond: answers / seconds,
    p50Ms: p50,
    p99Ms: p99,
    serverCpu: server === null ? null : server / answers,
    postgresCpu: postgres === null ? null : postgres / answers,
    loadCpu: cpuMicroseconds / answers,
    others: others === null ? null : Math.max(0, others / (seconds * 1e6 * cores)),
  };
}

const cores = os.cpus().length;

function since(before: number | null, after: number | null): number | null {
  return before === null || after === null ? null : after - before;
}

function mediansOf(rounds: readonly Figures[]): Figures {
  const of = (pick: (figures: Figures) => number) => median(rounds.map(pick));
  const ofKnown = (pick: (figures: Figures) => number | null) => {
    const known = rounds.map(pick).filter((value) => value !== null);
    return known.length === 0 ? null : median(known);
  };
  return {
    perSecond: of(({ perSecond }) => perSecond),
    p50Ms: of(({ p50Ms }) => p50Ms),
    p99Ms: of(({ p99Ms }) => p99Ms),
    serverCpu: ofKnown(({ serverCpu }) => serverCpu),
    postgresCpu: ofKnown(({ postgresCpu }) => postgresCpu),
    loadCpu: of(({ loadCpu }) => loadCpu),
    others: ofKnown(({ others }) => others),
  };
}
