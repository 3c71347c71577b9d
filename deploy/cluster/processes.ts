/** The processes of the cluster, each with its own log. */

import { spawn } from "node:child_process";
import { closeSync, openSync } from "node:fs";
import { setTimeout as delay } from "node:timers/promises";

export interface Command {
  readonly file: string;
  readonly args: readonly string[];
  readonly env?: NodeJS.ProcessEnv;
  readonly uid?: number;
  readonly gid?: number;
}

export interface Process {
  readonly pid: number;
  /** Resolves when the process has ended, with its exit code or the signal that ended it. */
  readonly ended: Promise<string>;
  kill(signal: NodeJS.Signals): void;
  /** Resolves with whether the process ended within this time. */
  endsWithin(timeoutMs: number): Promise<boolean>;
}

/**
 * Starts the process in its own session, so that Ctrl-C in a terminal reaches only the program that started the cluster, which
 * then stops everything in order.
 */
export function startProcess({ file, args, ...options }: Command, logFile: string): Process {
  const log = openSync(logFile, "a");
  const child = spawn(file, args, { ...options, stdio: ["ignore", log, log], detached: true });
  closeSync(log);
  const ended = new Promise<string>((resolve) => {
    child.once("error", (error) => resolve(error.message));
    child.once("exit", (code, signal) => resolve(signal ?? `exit code ${code}`));
  });
  return {
    pid: child.pid ?? 0,
    ended,
    kill: (signal) => void child.kill(signal),
    async endsWithin(timeoutMs) {
      const timer = new AbortController();
      const late = delay(timeoutMs, "late", { signal: timer.signal }).catch(() => "late");
      const inTime = (await Promise.race([ended, late])) !== "late";
      timer.abort();
      return inTime;
    },
  };
}

/** Ends a process with the given signals, each with its timeout in milliseconds, and finally SIGKILL. */
export async function endProcess(
  process: Process,
  steps: readonly (readonly [NodeJS.Signals, number])[],
): Promise<void> {
  for (const [signal, timeoutMs] of [...steps, ["SIGKILL", 5_000] as const]) {
    process.kill(signal);
    if (await process.endsWithin(timeoutMs)) return;
  }
}

/** Retries `ask` until it succeeds. On timeout, the error includes that of the last attempt. */
export async function until<T>(what: string, timeoutMs: number, ask: () => Promise<T>): Promise<T> {
  const deadline = Date.now() + timeoutMs;
  for (;;) {
    try {
      return await ask();
    } catch (error) {
      if (Date.now() > deadline) throw new Error(`${what}: timed out after ${timeoutMs / 1000} s (${error})`);
      await delay(50);
    }
  }
}
