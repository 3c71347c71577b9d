/** CPU time of other processes, from /proc; null if it is not available. */

import { readdirSync, readFileSync } from "node:fs";

/** User and system time so far, in microseconds. */
export type CpuClock = () => number | null;

/** The kernel reports CPU time to user space in hundredths of a second on every architecture. */
const microsecondsPerTick = 10_000;

interface Times {
  readonly parent: number;
  readonly own: number;
  /** CPU time of children that have ended and been waited for. */
  readonly endedChildren: number;
}

/** The CPU time of all processes of the machine. Idle time and waiting for disks do not count. */
export const machineClock: CpuClock = () => {
  let text: string;
  try {
    text = readFileSync("/proc/stat", "utf8");
  } catch {
    return null;
  }
  const [user = 0, nice = 0, system = 0, , , irq = 0, softirq = 0, steal = 0] = text
    .slice("cpu ".length, text.indexOf("\n"))
    .trim()
    .split(" ")
    .map(Number);
  return (user + nice + system + irq + softirq + steal) * microsecondsPerTick;
};

export function processClock(pid: number): CpuClock {
  return () => timesOf(pid)?.own ?? null;
}

/** The CPU time of a Postgres: the postmaster and its children, including ended connections. */
export function postgresClock(postmaster: number): CpuClock {
  return () => {
    const main = timesOf(postmaster);
    if (main === null) return null;
    let total = main.own + main.endedChildren;
    for (const name of readdirSync("/proc")) {
      if (!/^\d+$/.test(name)) continue;
      const times = timesOf(Number(name));
      if (times?.parent === postmaster) total += times.own;
    }
    return total;
  };
}

/** Fields 4 and 14 to 17 of proc_pid_stat(5), counted from behind the name, which may contain any characters. */
function timesOf(pid: number): Times | null {
  let text: string;
  try {
    text = readFileSync(`/proc/${pid}/stat`, "utf8");
  } catch {
    return null;
  }
  const fields = text
    .slice(text.lastIndexOf(")") + 2)
    .split(" ")
    .map(Number);
  const ticks = (first: number) => ((fields[first] ?? 0) + (fields[first + 1] ?? 0)) * microsecondsPerTick;
  return { parent: fields[1] ?? 0, own: ticks(11), endedChildren: ticks(13) };
}
