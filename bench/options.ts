import { parseArgs } from "node:util";
import { guardedOperations } from "./guard.ts";
import { type OperationName, operationNames } from "./operations.ts";

export interface Options {
  /** Timed rounds per arm. */
  readonly rounds: number;
  /** Seconds per round. */
  readonly seconds: number;
  readonly only: readonly OperationName[];
  /** Measures growth and memory instead: takes most of an hour. */
  readonly long: boolean;
  /** Rows of the largest tables in a long run. */
  readonly rows: number;
  /** Duration of the memory measurement under full load in a long run. */
  readonly minutes: number;
  /** Only checks whether a request costs more CPU than allowed. */
  readonly guard: boolean;
  /** Directory for a CPU profile of the service. */
  readonly profile: string | undefined;
}

/** Rows of the largest tables in a whole long run. */
export const allRows = 10_000_000;

export const usage = `npm run bench -- [--rounds N] [--seconds S] [--only ${operationNames.join(",")}] [--profile DIR]
       npm run bench -- --long [--rows N] [--minutes N] [--rounds N] [--seconds S]
       npm run bench -- --guard`;

/** Throws an error with a one-line message for invalid options. */
export function parseOptions(args: readonly string[]): Options {
  const { values } = parseArgs({
    args: [...args],
    options: {
      rounds: { type: "string", default: "4" },
      seconds: { type: "string", default: "1.4" },
      only: { type: "string", default: operationNames.join(",") },
      long: { type: "boolean", default: false },
      rows: { type: "string", default: String(allRows) },
      minutes: { type: "string", default: "10" },
      guard: { type: "boolean", default: false },
      profile: { type: "string" },
    },
  });
  const rounds = Number(values.rounds);
  const seconds = Number(values.seconds);
  if (!Number.isInteger(rounds) || rounds < 1) throw new Error("--rounds must be a whole number from 1");
  if (!(seconds > 0)) throw new Error("--seconds must be a positive number");
  const names = values.only.split(",");
  const chosen = operationNames.filter((name) => names.includes(name));
  if (chosen.length < names.length) throw new Error(`--only must list some of ${operationNames.join(",")}`);
  const { long, guard, profile } = values;
  const rows = Number(values.rows);
  const minutes = Number(values.minutes);
  if (!Number.isInteger(rows) || rows < 10_000) throw new Error("--rows must be a whole number from 10000");
  if (!Number.isInteger(minutes) || minutes < 1) throw new Error("--minutes must be a whole number from 1");
  const only = guard ? guardedOperations : chosen;
  return { rounds, seconds, only, long, rows, minutes, guard, profile };
}
