import { CommanderError } from "commander";
import { report } from "./cli-error.ts";
import { Interrupted } from "./interrupt.ts";
import { buildProgram } from "./program.ts";

/** Runs the command with these arguments (without the program's name) and sets the process's exit code. */
export async function execute(args: readonly string[]): Promise<void> {
  try {
    await buildProgram().parseAsync(args, { from: "user" });
  } catch (error) {
    if (error instanceof CommanderError) process.exitCode = error.exitCode === 0 ? 0 : 2;
    else if (error instanceof Interrupted) process.exitCode = error.exitCode;
    else process.exitCode = report(error, wantsJson(args));
  }
}

export function wantsJson(args: readonly string[]): boolean {
  const end = args.indexOf("--");
  return args.slice(0, end === -1 ? undefined : end).includes("--json");
}
