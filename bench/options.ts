import { parseArgs } from "node:util";
import { type OperationName, operationNames } from "./operations.ts";

export interface Options {
  /** Timed rounds of each arm. */
  readonly rounds: number;
  /** Of a round. */
  readonly seconds: number;
  readonly only: readonly OperationName[];
  /** Where the service leaves a CPU profile. */
  readonly profile: string | undefined;
}

export const usage = `npm run bench -- [--rounds N] [--seconds S] [--only ${operationNames.join(",")}] [--profile DIR]`;

/** Throws an error of one line for what cannot be. */
export function parseOptions(args: readonly string[]): Options {
  const { values } = parseArgs({
    args: [...args],
    options: {
      rounds: { type: "string", default: "5" },
      seconds: { type: "string", default: "1.6" },
      only: { type: "string", default: operationNames.join(",") },
      profile: { type: "string" },
    },
  });
  const rounds = Number(values.rounds);
  const seconds = Number(values.seconds);
  if (!Number.isInteger(rounds) || rounds < 1) throw new Error("--rounds must be a whole number from 1");
  if (!(seconds > 0)) throw new Error("--seconds must be a positive number");
  const names = values.only.split(",");
  const only = operationNames.filter((name) => names.includes(name));
  if (only.length < names.length) throw new Error(`--only takes some of ${operationNames.join(",")}`);
  return { rounds, seconds, only, profile: values.profile };
}
