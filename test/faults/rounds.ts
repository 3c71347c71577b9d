/** Applies faults one after the other in a world, and checks all invariants after each. */

import { mkdtemp, rm } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import type { Fault } from "./faults.ts";
import { randomOf } from "./random.ts";
import { openWorld } from "./world.ts";

export interface Applied {
  readonly fault: string;
  readonly recoveredMs: number;
  /** Calls answered during the fault and the recovery, and how many of them with 503. */
  readonly answered: number;
  readonly refused: number;
  /** Calls left unanswered by a killed process. */
  readonly lost: number;
  readonly violations: readonly string[];
}

/** Applies all faults in one world; they must share its setting. Stops after the first fault with a violation. */
export async function applyAll(options: {
  readonly seed: number;
  readonly faults: readonly Fault[];
  /**
   * Whether a late recovery is a violation. Since other load may slow the machine down, recovery may always take twice as long
   * as the first start.
   */
  readonly inTime: boolean;
  readonly onApplied: (result: Applied) => void;
}): Promise<readonly string[]> {
  const { seed, faults, inTime, onApplied } = options;
  const random = randomOf(seed);
  const keepIn = await mkdtemp(path.join(os.tmpdir(), `phoneproof-faults-${seed}-`));
  const world = await openWorld({
    random: random.fork(),
    setting: faults[0]?.setting ?? "plain",
    processes: Math.max(...faults.map(({ processes }) => processes)),
    keepIn,
  });
  let violations: string[] = [];
  try {
    for (const fault of random.shuffle(faults)) {
      const choices = random.fork();
      await delay(choices.between(300, 900));
      const before = world.journal.read().length;
      world.journal.append({ what: "fault", name: fault.name, note: "begins" });
      await fault.apply(world, choices).catch((error: Error) => {
        world.journal.append({
          what: "violation",
          text: `${fault.name} could not be applied: ${error.message}`,
        });
      });
      world.journal.append({ what: "fault", name: fault.name, note: "ends" });
      const recoveredMs = await world.recovered();
      violations = await world.check();
      const limitMs = Math.max(fault.recoversWithinMs, 2 * world.startedInMs);
      if (inTime && recoveredMs > limitMs) {
        violations.push(`recovery took ${recoveredMs} ms, more than ${limitMs}`);
      }
      const seen = world.journal.read().slice(before);
      onApplied({
        fault: fault.name,
        recoveredMs,
        answered: seen.filter(({ what }) => what === "answered").length,
        refused: seen.filter((entry) => entry.what === "answered" && entry.status === 503).length,
        lost: seen.filter((entry) => entry.what === "unanswered").length,
        violations,
      });
      if (violations.length > 0) break;
    }
  } finally {
    await world.close();
  }
  if (violations.length === 0) await rm(keepIn, { recursive: true });
  else violations = [...violations, `journal and logs are in ${keepIn}`];
  return violations;
}
