/** Ctrl-C and its like during something that would go on for long. */

import { constants } from "node:os";

/** What `signal` aborts with; the process then exits as a shell expects of one that a signal ended. */
export class Interrupted extends Error {
  readonly exitCode: number;

  constructor(name: "SIGINT" | "SIGTERM" | "SIGHUP") {
    super(`interrupted by ${name}`);
    this.name = "Interrupted";
    this.exitCode = 128 + constants.signals[name];
  }
}

/** Runs `body` with a signal that the first SIGINT, SIGTERM or SIGHUP aborts. */
export async function interruptible<T>(body: (signal: AbortSignal) => Promise<T>): Promise<T> {
  const abort = new AbortController();
  const interrupt = (name: NodeJS.Signals) => {
    if (name !== "SIGINT" && name !== "SIGTERM" && name !== "SIGHUP") return;
    // Past the ^C that a terminal echoes.
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
