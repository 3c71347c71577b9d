/** What it means for a command that its output cannot be written: its reader went away, as `| head` does, or the disk is full. */

import { fstatSync, statSync } from "node:fs";
import { devNull } from "node:os";
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

/** For a command that has created a key or a token, whose secret only its output has. */
export function noteCreated(kind: "key" | "token", id: string): void {
  consequence = () =>
    `${id} was created, but its secret is lost: revoke it with phoneproof ${kind} revoke ${id}`;
}

/**
 * To be called before a key or a token is created, whose secret nobody would see on /dev/null. Node itself opens that in place of
 * an output that is closed when it starts, and writing to it succeeds.
 */
export function requireOutput(): void {
  if (process.platform === "win32") return;
  const output = fstatSync(process.stdout.fd);
  if (!output.isCharacterDevice() || output.rdev !== statSync(devNull).rdev) return;
  const reason = "the output is closed or goes to /dev/null, and only it would have the secret";
  throw new CliError(1, "output_failed", `${reason}: nothing was created`);
}

/** The error to exit with; undefined if the command ends quietly. */
export function outputError({ code, message }: NodeJS.ErrnoException): CliError | undefined {
  const isClosed = code === "EPIPE";
  if (isClosed && consequence === undefined) return undefined;
  const what = isClosed ? "the output was closed early" : `the output cannot be written (${message})`;
  const andSo = consequence === undefined ? "" : `: ${consequence()}`;
  return new CliError(1, "output_failed", `${what}${andSo}`);
}
