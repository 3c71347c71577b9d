/** The result as a table and as JSON. */

import os from "node:os";
import { type ArrivalFigures, boundOf, judgedShare } from "./open-loop.ts";
import type { OperationName } from "./operations.ts";
import { type ArmFigures, type Figures, ratioOf } from "./rounds.ts";
import { type StartTimes, startGoals } from "./start-time.ts";

export interface Machine {
  readonly cpu: string;
  readonly cores: number;
  readonly memoryGiB: number;
  readonly node: string;
  readonly postgres: string;
  /** The load average over the last minute when the run began. */
  readonly loadBefore: number;
}

/** The desired value of a ratio, and its minimum. */
interface Goal {
  readonly target: number;
  readonly floor: number | null;
}

const goals: Partial<Record<OperationName, Goal>> = {
  create: { target: 0.6, floor: 0.4 },
  replay: { target: 0.6, floor: null },
  read: { target: 0.6, floor: 0.4 },
  cancel: { target: 0.45, floor: null },
  inbound: { target: 0.5, floor: 0.35 },
};
const databaseGoal: Goal = { target: 7, floor: null };

export interface Report {
  readonly madeAt: string;
  readonly machine: Machine;
  readonly rounds: number;
  readonly secondsPerRound: number;
  readonly connections: number;
  readonly pendingVerifications: number;
  readonly starts: StartTimes;
  readonly operations: readonly {
    readonly operation: OperationName;
    readonly arms: readonly ArmFigures[];
    /** The service's throughput divided by the bare server's, and by the database loop's if there is one. */
    readonly ratioToBare: number | null;
    readonly ratioToDatabase: number | null;
    /** The service at constant arrival rates. */
    readonly arrivals: readonly ArrivalFigures[];
    readonly goals: { readonly bare: Goal | null; readonly database: Goal | null };
  }[];
}

export function machine(postgres: string, loadBefore: number): Machine {
  const cpus = os.cpus();
  return {
    cpu: cpus[0]?.model.trim() ?? "unknown",
    cores: cpus.length,
    memoryGiB: Math.round(os.totalmem() / 2 ** 30),
    node: process.versions.node,
    postgres,
    loadBefore: Math.round(loadBefore * 10) / 10,
  };
}

export function machineLine(on: Machine): string {
  return `${on.cpu}, ${on.cores} cores, ${on.memoryGiB} GiB; Node ${on.node}; Postgres ${on.postgres}; load before ${on.loadBefore}`;
}

export function reportOn(
  operation: OperationName,
  arms: readonly ArmFigures[],
  arrivals: readonly ArrivalFigures[],
): Report["operations"][number] {
  const ratioToDatabase = ratioOf(arms, "service", "database");
  return {
    operation,
    arms,
    ratioToBare: ratioOf(arms, "service", "bare"),
    ratioToDatabase,
    arrivals,
    goals: { bare: goals[operation] ?? null, database: ratioToDatabase === null ? null : databaseGoal },
  };
}

const columns = [
  { head: "", width: 8 },
  { head: "", width: 9 },
  { head: "per s", width: 8 },
  { head: "p50 ms", width: 7 },
  { head: "p99 ms", width: 7 },
  { head: "server", width: 7 },
  { head: "Postgres", width: 9 },
  { head: "load", width: 6 },
  { head: "others", width: 6 },
  { head: "ratio", width: 7 },
  { head: "target", width: 7 },
  { head: "floor", width: 6 },
] as const;

export function table(report: Report): string {
  const lines = [
    machineLine(report.machine),
    `${report.connections} connections, medians of ${report.rounds} rounds of ${report.secondsPerRound} s, ` +
      `${report.pendingVerifications.toLocaleString("en")} pending`,
    "",
    `${" ".repeat(44)}CPU µs per request${" ".repeat(12)}service by this`,
    row(columns.map(({ head }) => head)),
  ];
  for (const { operation, arms, ratioToBare, ratioToDatabase, goals: goal } of report.operations) {
    for (const [index, { arm, medians }] of arms.entries()) {
      const ratio = arm === "bare" ? ratioToBare : arm === "database" ? ratioToDatabase : null;
      const aim = arm === "bare" ? goal.bare : arm === "database" ? goal.database : null;
      const name = index === 0 ? operation : "";
      const aims = ratio === null ? ["", "", ""] : [times(ratio), times(aim?.target), times(aim?.floor)];
      lines.push(row([name, arm, ...figureCells(medians), ...aims]));
    }
  }
  lines.push("", ...arrivalLines(report), "", startLine(report.starts));
  return `${lines.join("\n")}\n`;
}

function startLine({ embeddedMs, besidePostgresMs }: StartTimes): string {
  const withGoal = (milliseconds: number, goal: number) =>
    `${(milliseconds / 1000).toFixed(2)} s (under ${goal / 1000})`;
  return (
    `Ready after ${withGoal(embeddedMs, startGoals.embeddedMs)} with an existing embedded database, ` +
    `${withGoal(besidePostgresMs, startGoals.besidePostgresMs)} with a running Postgres`
  );
}

/** The service alone, with clients that do not wait for each other. */
function arrivalLines({ operations }: Report): string[] {
  const cells = (name: string, values: readonly string[]) =>
    name.padEnd(10) + values.map((value) => value.padStart(9)).join("");
  const lines = operations.flatMap(({ operation, arrivals }) => {
    const judged = arrivals.find(({ share }) => share === judgedShare);
    if (judged === undefined) return [];
    const { perSecond, p50Ms, p99Ms } = judged;
    const bound = boundOf(judged);
    const verdict = p99Ms <= bound ? "within" : "beyond";
    const rate = Math.round(perSecond).toLocaleString("en");
    return [cells(operation, [rate, p50Ms.toFixed(2), p99Ms.toFixed(2), bound.toFixed(2), verdict])];
  });
  if (lines.length === 0) return [];
  return [
    "Arrivals at half of the service's rate, sent whether or not earlier ones were answered",
    cells("", ["per s", "p50 ms", "p99 ms", "3 p50+5", ""]).trimEnd(),
    ...lines,
  ];
}

function row(cells: readonly string[]): string {
  return columns
    .map(({ width }, index) => {
      const cell = cells[index] ?? "";
      return index < 2 ? cell.padEnd(width) : cell.padStart(width);
    })
    .join(" ")
    .trimEnd();
}

export function figureCells(figures: Figures): string[] {
  const micro = (value: number | null) => (value === null ? "–" : value.toFixed(1));
  return [
    Math.round(figures.perSecond).toLocaleString("en"),
    figures.p50Ms.toFixed(2),
    figures.p99Ms.toFixed(2),
    micro(figures.serverCpu),
    micro(figures.postgresCpu),
    micro(figures.loadCpu),
    figures.others === null ? "–" : `${Math.round(figures.others * 100)} %`,
  ];
}

const times = (value: number | null | undefined) => (value == null ? "–" : value.toFixed(2));
