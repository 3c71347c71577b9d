/** The phoneproof command. */

import { CommanderError } from "commander";
import { Interrupted } from "./interrupt.ts";
import { buildProgram } from "./program.ts";
import { report, Trouble } from "./trouble.ts";

/** `| head` ends a pipe early, and has what it wanted. */
function endWithTheOutput(error: NodeJS.ErrnoException): void {
  if (error.code === "EPIPE") process.exit(process.exitCode ?? 0);
  process.exit(
    report(new Trouble(1, "output_failed", `the output cannot be written: ${error.message}`), wantsJson()),
  );
}

function wantsJson(): boolean {
  const end = process.argv.indexOf("--");
  return process.argv.slice(2, end === -1 ? undefined : end).includes("--json");
}

process.stdout.on("error", endWithTheOutput);
// Whoever no longer reads what went wrong is not to be told that either.
process.stderr.on("error", () => {});

try {
  await buildProgram().parseAsync();
} catch (error) {
  if (error instanceof CommanderError) process.exitCode = error.exitCode === 0 ? 0 : 2;
  else if (error instanceof Interrupted) process.exitCode = error.exitCode;
  else process.exitCode = report(error, wantsJson());
}
