/** The entry point of the phoneproof command. */

import { CliError, report } from "./cli-error.ts";
import { execute, wantsJson } from "./execute.ts";
import { exit } from "./exit.ts";

const args = process.argv.slice(2);

/** A reader that closes the pipe early, such as `| head`, has all it wanted: this is not an error. */
function endWithTheOutput(error: NodeJS.ErrnoException): void {
  if (error.code === "EPIPE") process.exit(process.exitCode ?? 0);
  process.exit(
    report(
      new CliError(1, "output_failed", `the output cannot be written: ${error.message}`),
      wantsJson(args),
    ),
  );
}

process.stdout.on("error", endWithTheOutput);
// Errors cannot be reported once nobody reads stderr.
process.stderr.on("error", () => {});

await execute(args);
await exit();
