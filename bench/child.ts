/** Processes that the bench starts, and ends again however it ends itself. */

import { type ChildProcess, fork, spawn } from "node:child_process";
import { closeSync, openSync } from "node:fs";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";

/** A child of this folder that talks by messages. It ends itself when this process does. */
export class Talker<Request extends object, Answer> {
  readonly #child: ChildProcess;

  /** `environment` over this process's own. */
  constructor(
    file: string,
    args: readonly string[] = [],
    environment: Readonly<Record<string, string>> = {},
  ) {
    this.#child = fork(path.join(import.meta.dirname, file), args, {
      env: { ...process.env, ...environment },
      stdio: ["ignore", "ignore", "inherit", "ipc"],
      serialization: "advanced",
      // What ends the bench comes to all of its group, as with Ctrl-C and `timeout`.
      detached: true,
    });
  }

  get pid(): number {
    return this.#child.pid ?? 0;
  }

  ask(request: Request): Promise<Answer> {
    const answered = this.heard();
    this.#child.send(request);
    return answered;
  }

  tell(request: Request): void {
    this.#child.send(request);
  }

  /** The next thing it says. */
  heard(): Promise<Answer> {
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
  /** Resolves when it has ended, with how. */
  readonly exited: Promise<string>;
  stop(): Promise<void>;
}

/** How long the service may take for a clean end; it forces itself after 14 s. */
const stopPatienceMs = 20_000;

/**
 * A Node program with its output in a file. It is in a session of its own: Ctrl-C in the terminal is for the
 * bench alone, which then ends it in order; a second signal would cut its clean end short.
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
      const patience = new AbortController();
      const late = delay(stopPatienceMs, "late", { signal: patience.signal }).catch(() => "");
      if ((await Promise.race([exited, late])) === "late") child.kill("SIGKILL");
      patience.abort();
      await exited;
    },
  };
}
