/** Child processes of the benchmarks, which are always ended, however the benchmark itself ends. */

import { type ChildProcess, fork, spawn } from "node:child_process";
import { closeSync, openSync } from "node:fs";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";

/** A child process from this folder that communicates by messages. It exits when this process does. */
export class ChildProgram<Request extends object, Answer> {
  readonly #child: ChildProcess;

  /** `environment` is added to this process's own. */
  constructor(
    file: string,
    args: readonly string[] = [],
    environment: Readonly<Record<string, string>> = {},
  ) {
    this.#child = fork(path.join(import.meta.dirname, file), args, {
      env: { ...process.env, ...environment },
      stdio: ["ignore", "ignore", "inherit", "ipc"],
      serialization: "advanced",
      // A signal that ends the benchmark goes to its whole process group, as with Ctrl-C and `timeout`; the child must not end
      // before the benchmark ends it.
      detached: true,
    });
  }

  get pid(): number {
    return this.#child.pid ?? 0;
  }

  ask(request: Request): Promise<Answer> {
    const answered = this.nextMessage();
    this.#child.send(request);
    return answered;
  }

  send(request: Request): void {
    this.#child.send(request);
  }

  /** The child's next message. */
  nextMessage(): Promise<Answer> {
    return new Promise((resolve, reject) => {
      const onExit = () =>
        reject(new Error(`${path.basename(this.#child.spawnargs.at(-1) ?? "")} ended early`));
      this.#child.once("exit", onExit);
      this.#child.once("message", (answer) => {
        this.#child.off("exit", onExit);
        resolve(answer as Answer);
      });
    });
  }

  close(): void {
    this.#child.kill("SIGKILL");
  }
}

export interface Daemon {
  readonly pid: number;
  /** Resolves when the process has ended, with a description of how. */
  readonly exited: Promise<string>;
  stop(): Promise<void>;
}

/** How long the service may take to shut down cleanly; it forces its own exit after 14 s. */
const stopTimeoutMs = 20_000;

/**
 * Starts a Node program with its output in a file. The program gets its own session: Ctrl-C in the terminal reaches only the
 * benchmark, which then shuts the program down in order. A second signal would cut that shutdown short.
 */
export function startDaemon(options: {
  readonly program: string;
  readonly execArgv: readonly string[];
  readonly environment: Readonly<Record<string, string>>;
  readonly outputFile: string;
}): Daemon {
  const output = openSync(options.outputFile, "a");
  const child = spawn(process.execPath, [...options.execArgv, options.program], {
    env: { ...options.environment },
    stdio: ["ignore", output, output],
    detached: true,
  });
  closeSync(output);
  const exited = new Promise<string>((resolve) => {
    child.once("error", (error) => resolve(error.message));
    child.once("exit", (code, signal) => resolve(`it ended with ${signal ?? `exit code ${code}`}`));
  });
  return {
    pid: child.pid ?? 0,
    exited,
    async stop() {
      child.kill("SIGTERM");
      const timer = new AbortController();
      const late = delay(stopTimeoutMs, "late", { signal: timer.signal }).catch(() => "");
      if ((await Promise.race([exited, late])) === "late") child.kill("SIGKILL");
      timer.abort();
      await exited;
    },
  };
}
