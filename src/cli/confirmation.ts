/** Asks before something that cannot be undone. */

import { writeFileSync } from "node:fs";
import { createInterface } from "node:readline";

/** Whether a person who types in a terminal agrees; one who cannot be asked does not. A program is not asked. */
export async function isConfirmed(question: string): Promise<boolean> {
  if (!process.stdin.isTTY) return true;
  if (!writeToTerminal(`${question} [y/N] `)) return false;
  for await (const line of createInterface({ input: process.stdin })) return /^\s*y(es)?\s*$/i.test(line);
  // The terminal's end of input, Ctrl-D, leaves the cursor behind the question.
  writeToTerminal("\n");
  return false;
}

/** Wherever the errors go: who sends them to a file still sits at the terminal. False if there is none to write to. */
function writeToTerminal(text: string): boolean {
  try {
    if (process.stderr.isTTY) process.stderr.write(text);
    else writeFileSync("/dev/tty", text);
    return true;
  } catch {
    return false;
  }
}
