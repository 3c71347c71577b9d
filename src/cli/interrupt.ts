/** Handling of Ctrl-C and termination signals during a long operation. */

import { constants } from "node:os";

/** The abort reason of `signal`. The process exits with 128 plus the signal's number, as shells expect. */
export class Interrupted extends Error {
  readonly exitCode: number;

  constructor(name: NodeJS.Signals) {
    super(`interrupted by ${name}`);
    this.name = "Interrupted";
    this.exitCode = 128 + constants.signals[name];
  }
}

/** Runs `body` with an AbortSignal that the first SIGINT, SIGTERM or SIGHUP aborts. */
export async function interruptible<T>(body: (signal: AbortSignal) => Promise<T>): Promise<T> {
  const abort = new AbortController();
  const interrupt = (name: NodeJS.Signals) => {
    // Moves to a new line after the ^C that the terminal echoes.
    if (name === "SIGINT" && process.stderr.isTTY && !abort.signal.aborted) process.stderr.write("\n");
    abort.abort(new Interrupted(name));
  };
  const names = ["SIGINT", "SIGTERM", "SIGHUP"] as const;
  for (const name of names) process.on(name, interrupt);
  try {
    return await body(abort.signal);
  } finally {
    for (const name of names) process.off(name, interrupt);
  }
}
