/** What it means for a command that the reader of its output went away, as `| head` does. */

import { CliError } from "./cli-error.ts";

/** Commands that only show something: a reader that closes their output early has read what it needs. */
const readingCommands: ReadonlySet<string> = new Set([
  "list",
  "show",
  "watch",
  "deliveries",
  "stats",
  "help",
]);

let consequence: (() => string) | undefined;

/** The command that runs, by its own name. Any that changes or sends something fails if its output is not read to the end. */
export function noteCommand(name: string): void {
  consequence = readingCommands.has(name) ? undefined : () => "what the command did remains in effect";
}

/** Replaces what the error says about the running command. */
export function onClosedOutput(text: () => string): void {
  consequence = text;
}

/** The error to exit with; undefined if the command ends quietly. */
export function closedOutputError(): CliError | undefined {
  if (consequence === undefined) return undefined;
  return new CliError(1, "output_failed", `the output was closed early: ${consequence()}`);
}
