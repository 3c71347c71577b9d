/** Resident memory of the service's process at full load, over several minutes. */

import { readFileSync } from "node:fs";
import { type OperationName, openArms, type Subjects } from "./operations.ts";

export interface MemoryFigures {
  readonly minutes: number;
  /** The maximum of each minute, in MiB. */
  readonly perMinute: readonly number[];
}

/** MiB. */
const memoryGoal = 250;

const sampleMs = 500;
/** Creations, reads and messages in turn, a few seconds each, so that every minute has all of them. */
const operations: readonly OperationName[] = ["create", "read", "inbound"];
const sliceMs = 5_000;

export async function measureMemory(
  subjects: Subjects,
  minutes: number,
  reportProgress: (what: string) => void,
): Promise<MemoryFigures> {
  const arms = [];
  for (const operation of operations) {
    const opened = await openArms[operation](subjects);
    for (const arm of opened) {
      if (arm.name === "service") arms.push(arm);
      else arm.close();
    }
  }
  const perMinute: number[] = [];
  const startedAt = performance.now();
  const sampling = setInterval(() => {
    const minute = Math.floor((performance.now() - startedAt) / 60_000);
    if (minute < minutes)
      perMinute[minute] = Math.max(perMinute[minute] ?? 0, residentMiB(subjects.service.pid));
  }, sampleMs);
  try {
    for (let turn = 0; performance.now() - startedAt < minutes * 60_000; turn++) {
      const arm = arms[turn % arms.length];
      if (turn % (arms.length * 4) === 0)
        reportProgress(`memory, minute ${Math.floor((performance.now() - startedAt) / 60_000)}`);
      await arm?.prepare?.();
      await arm?.run(sliceMs);
    }
  } finally {
    clearInterval(sampling);
    for (const arm of arms) arm.close();
  }
  return { minutes, perMinute };
}

export function residentMiB(pid: number): number {
  const line = /^VmRSS:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, "utf8"));
  return Number(line?.[1] ?? Number.NaN) / 1024;
}

export function memoryLine({ minutes, perMinute }: MemoryFigures): string {
  const [first = Number.NaN] = perMinute;
  const most = Math.max(...perMinute);
  const last = perMinute.at(-1) ?? Number.NaN;
  return (
    `Resident memory over ${minutes} minutes of full load: at most ${most.toFixed(0)} MiB (under ${memoryGoal}); ` +
    `${first.toFixed(0)} in the first minute, ${last.toFixed(0)} in the last`
  );
}
