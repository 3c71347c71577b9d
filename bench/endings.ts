/** Cleanup functions, which run once and in reverse order of registration, however the run ends. */

import { mkdtemp, rm } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { reportProgress } from "./progress.ts";

export class Endings {
  readonly #endings: (() => Promise<unknown> | unknown)[] = [];
  #ending: Promise<void> | undefined;

  add(end: () => Promise<unknown> | unknown): void {
    this.#endings.push(end);
  }

  /** Makes a directory, which the cleanup removes. */
  async directory(): Promise<string> {
    const directory = await mkdtemp(path.join(os.tmpdir(), "phoneproof-bench-"));
    this.add(() => rm(directory, { recursive: true, force: true, maxRetries: 5 }));
    return directory;
  }

  endAll(): Promise<void> {
    this.#ending ??= (async () => {
      for (const end of this.#endings.toReversed()) {
        try {
          await end();
        } catch (error) {
          process.stderr.write(`cleanup failed: ${(error as Error).message}\n`);
        }
      }
    })();
    return this.#ending;
  }
}

/** Runs a benchmark command and then its cleanup. */
export async function runToItsEnd(work: (endings: Endings) => Promise<void>): Promise<void> {
  const endings = new Endings();
  let interrupted = false;
  for (const [signal, code] of [
    ["SIGINT", 130],
    ["SIGTERM", 143],
    ["SIGHUP", 129],
  ] as const) {
    process.once(signal, () => {
      interrupted = true;
      reportProgress("ending");
      endings.endAll().then(() => process.exit(code));
    });
  }
  process.once("uncaughtException", (error) => {
    process.stderr.write(`the bench failed: ${error.stack}\n`);
    endings.endAll().then(() => process.exit(1));
  });
  try {
    await work(endings);
  } catch (error) {
    // Errors during an interrupted run are only a consequence of its cleanup.
    if (!interrupted) {
      process.stderr.write(`the bench failed: ${(error as Error).message}\n`);
      process.exitCode = 1;
    }
  }
  await endings.endAll();
}

/** As `runToItsEnd`, for a command with one argument: a whole number from `least`, `usual` by default. */
export async function runCounted(
  { usage, usual, least = 1 }: { readonly usage: string; readonly usual: number; readonly least?: number },
  work: (count: number, endings: Endings) => Promise<void>,
): Promise<void> {
  const count = Number(process.argv[2] ?? usual);
  if (Number.isInteger(count) && count >= least) return runToItsEnd((endings) => work(count, endings));
  process.stderr.write(`usage: node bench/${usage}\n`);
  process.exitCode = 2;
}
