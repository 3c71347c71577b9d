/** Asks before something that cannot be undone. */

import { createInterface } from "node:readline";

/** Whether a person who types in a terminal agrees. A program is not asked. */
export async function isConfirmed(question: string): Promise<boolean> {
  if (!process.stdin.isTTY || !process.stderr.isTTY) return true;
  process.stderr.write(`${question} [y/N] `);
  for await (const line of createInterface({ input: process.stdin })) return /^\s*y(es)?\s*$/i.test(line);
  // The terminal's end of input, Ctrl-D, leaves the cursor behind the question.
  process.stderr.write("\n");
  return false;
}
