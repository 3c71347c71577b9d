/** Starts the process of an embedded Postgres, restarts it if it dies, and stops it. */
import { type ChildProcess, spawn } from "node:child_process";
import { chmod } from "node:fs/promises";
import { setTimeout as delay } from "node:timers/promises";
import type { Launch } from "./postgres-launch.ts";
import { reasonIn, type ServerLog } from "./postgres-log.ts";
import { readPidFile, stopInSteps } from "./postgres-orphans.ts";

/**
 * The longest silence in the log during a start: a long recovery logs its progress, and stopping it would only make it start
 * over.
 */
const startTimeoutMs = 30_000;

export function serverEnvironment(): NodeJS.ProcessEnv {
  // Nothing from our own environment: PG* variables and locales would change what the server does.
  return { PATH: process.env.PATH, LC_ALL: "C", TZ: "UTC" };
}

export interface ServerStart {
  readonly postgres: string;
  readonly launch: Launch;
  readonly cluster: string;
  readonly settings: Record<string, string>;
  readonly foreignPid: number | undefined;
  readonly log: ServerLog;
  /** Aborts the start. */
  readonly signal: AbortSignal | undefined;
}

/** Resolves once the server accepts connections; rejects with the reason if it does not, in one line. */
export async function startServer(start: ServerStart): Promise<ChildProcess> {
  const { postgres, launch, cluster, settings, foreignPid, log, signal } = start;
  await chmod(cluster, 0o700);
  const flags = Object.entries(settings).flatMap(([name, value]) => ["-c", `${name}=${value}`]);
  const { file, args, uid, gid } = launch.command(postgres, ["-D", cluster, ...flags]);
  const logStart = await log.size();
  const stale = await readPidFile(cluster);
  const child = spawn(file, args, {
    cwd: "/",
    detached: true,
    // Postgres ignores this pid when it finds it in a pid file: see stopOrphan.
    env: {
      ...serverEnvironment(),
      ...(foreignPid === undefined ? {} : { PG_GRANDPARENT_PID: String(foreignPid) }),
    },
    // Files, not pipes: pipes would break under a Postgres that outlives the service.
    stdio: ["ignore", log.fd, log.fd],
    ...(uid === undefined ? {} : { uid, gid }),
  });
  child.unref();
  const exit = exitOf(child);
  let failure: string | undefined;
  exit.then((how) => {
    failure = how;
  });

  let logSize = logStart;
  let lastOutputAt = performance.now();
  while (failure === undefined) {
    // First, since on a busy machine the server may be ready before it is looked at.
    if (signal?.aborted) {
      await stopChild(child, exit);
      signal.throwIfAborted();
    }
    const pidFile = await readPidFile(cluster);
    if (pidFile?.ready && pidFile.pid === child.pid && pidFile.startedAt !== stale?.startedAt) return child;
    const size = await log.size();
    if (size !== logSize) {
      logSize = size;
      lastOutputAt = performance.now();
    }
    if (performance.now() - lastOutputAt > startTimeoutMs) {
      await stopChild(child, exit);
      // Its log now ends with how it was stopped.
      throw new Error(`PostgreSQL does not start: it is not ready after ${startTimeoutMs / 1000} s`);
    }
    await delay(10);
  }
  throw new Error(`PostgreSQL does not start: ${reasonIn(await log.since(logStart)) || failure}`);
}

/** How long restarts of a server that died are tried: what its crash has left behind may take a while to go. */
const restartTimeoutMs = 30_000;
const restartPauseMs = 100;

/**
 * Restarts a server that has died, at the same endpoint. Postgres itself recovers from the crash of one backend; this is for
 * the death of the whole server. `givenUp` resolves with the reason why it cannot be restarted.
 */
export function supervise(
  first: ChildProcess,
  startAgain: (signal: AbortSignal) => Promise<ChildProcess>,
): { givenUp: Promise<string>; stop(): Promise<void> } {
  let child: ChildProcess | undefined = first;
  let stopping = false;
  /** Aborts a restart: recovery may take longer than the service has for its end. */
  const stopped = new AbortController();
  /** Why the last try failed. */
  let reason = "";

  async function restart(): Promise<ChildProcess | undefined> {
    const deadline = performance.now() + restartTimeoutMs;
    while (!stopping && performance.now() < deadline) {
      try {
        return await startAgain(stopped.signal);
      } catch (error) {
        reason = (error as Error).message;
        await delay(restartPauseMs);
      }
    }
    return undefined;
  }

  async function watch(): Promise<void> {
    while (child !== undefined) {
      await exitOf(child);
      child = stopping ? undefined : await restart();
      if (stopping && child !== undefined) await stopChild(child, exitOf(child));
    }
  }

  const watching = watch();
  return {
    givenUp: new Promise((resolve) => {
      watching.then(
        () => {
          if (!stopping) resolve(reason);
        },
        // Fails only while it stops the server, which `stop` reports.
        () => {},
      );
    }),
    async stop() {
      stopping = true;
      stopped.abort();
      if (child !== undefined && child.exitCode === null && child.signalCode === null) {
        await stopChild(child, exitOf(child));
      }
      await watching;
    },
  };
}

async function stopChild(child: ChildProcess, exit: Promise<unknown>): Promise<void> {
  const gone = exit.then(() => true);
  const stopped = await stopInSteps(
    (name) => child.kill(name),
    async (timeoutMs) => {
      const timeoutAbort = new AbortController();
      const timeout = delay(timeoutMs, false, { signal: timeoutAbort.signal });
      // A timer left running would delay the exit of the service.
      return Promise.race([gone, timeout]).finally(() => timeoutAbort.abort());
    },
  );
  if (!stopped) throw new Error(`PostgreSQL (process ${child.pid}) does not stop`);
}

const exits = new WeakMap<ChildProcess, Promise<string>>();

/** How the process ended, in words. Remembered, since the event is emitted only once. */
function exitOf(child: ChildProcess): Promise<string> {
  const known = exits.get(child);
  if (known !== undefined) return known;
  const exit = new Promise<string>((resolve) => {
    child.once("error", (error) => resolve(error.message));
    child.once("exit", (code, signal) => resolve(`it ended with ${signal ?? `exit code ${code}`}`));
  });
  exits.set(child, exit);
  return exit;
}
