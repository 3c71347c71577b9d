/** The phoneproof command. */

import { execute, wantsJson } from "./execute.ts";
import { exit } from "./exit.ts";
import { report, Trouble } from "./trouble.ts";

const args = process.argv.slice(2);

/** `| head` ends a pipe early, and has what it wanted. */
function endWithTheOutput(error: NodeJS.ErrnoException): void {
  if (error.code === "EPIPE") process.exit(process.exitCode ?? 0);
  process.exit(
    report(
      new Trouble(1, "output_failed", `the output cannot be written: ${error.message}`),
      wantsJson(args),
    ),
  );
}

process.stdout.on("error", endWithTheOutput);
// Whoever no longer reads what went wrong is not to be told that either.
process.stderr.on("error", () => {});

await execute(args);
await exit();
