/** The entry point of the phoneproof command. */

import { report } from "./cli-error.ts";
import { outputError } from "./closed-output.ts";
import { execute, wantsJson } from "./execute.ts";
import { exit } from "./exit.ts";

const args = process.argv.slice(2);

function endWithTheOutput(error: NodeJS.ErrnoException): void {
  const failure = outputError(error);
  process.exit(failure === undefined ? (process.exitCode ?? 0) : report(failure, wantsJson(args)));
}

process.stdout.on("error", endWithTheOutput);
// Errors cannot be reported once nobody reads stderr.
process.stderr.on("error", () => {});

await execute(args);
await exit();
