/**
 * Cleans up after a service that was killed: its Postgres, if still running, or the pid file of one that is not. A pid alone
 * proves nothing, since the system reuses it; only a process that can be recognised as a Postgres of this very cluster is
 * signalled.
 */
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { readdir, readFile, rm, stat } from "node:fs/promises";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { promisify } from "node:util";

const run = promisify(execFile);

/**
 * Fast shutdown; immediate shutdown, since a fast one was seen to hang during recovery; kill. With the milliseconds to wait
 * after each.
 */
const endingSignals = [
  ["SIGINT", 5_000],
  ["SIGQUIT", 3_000],
  ["SIGKILL", 3_000],
] as const;

/**
 * Sends these signals in turn until `gone` resolves to true within a step's timeout in milliseconds; false if it never does.
 */
export async function stopInSteps(
  signal: (name: NodeJS.Signals) => void,
  gone: (timeoutMs: number) => Promise<boolean>,
): Promise<boolean> {
  for (const [name, timeoutMs] of endingSignals) {
    signal(name);
    if (await gone(timeoutMs)) return true;
  }
  return false;
}

export interface PidFile {
  readonly pid: number;
  readonly ready: boolean;
  /** Identifies the start: a pid is reused soon, in a container at every start. */
  readonly startedAt: string;
}

const pidFileOf = (cluster: string) => path.join(cluster, "postmaster.pid");

/** Lines 1, 3, 7 and 8: the postmaster's pid, start, shared memory and state (PostgreSQL's pidfile.h). */
export async function readPidFile(cluster: string): Promise<PidFile | undefined> {
  const text = await readFile(pidFileOf(cluster), "utf8").catch(() => "");
  const lines = text.split("\n");
  const pid = Number.parseInt(lines[0] ?? "", 10);
  // 0 and negative numbers address process groups.
  return pid > 0
    ? { pid, ready: lines[7]?.trim() === "ready", startedAt: `${lines[2]}/${lines[6]}` }
    : undefined;
}

/**
 * Stops the Postgres that a killed service left on this cluster, and waits for its last backend.
 *
 * Returns the pid in a stale pid file, which by now may belong to another program. Postgres would take that program for a
 * running server; deleting the file instead would switch off its second check (the shared memory segment named in the file),
 * which protects the data from a backend that outlived its postmaster. A file without a pid, as after a power failure while it
 * was written, names no segment either, and Postgres would never start with it: only such a file is deleted.
 */
export async function stopOrphan(cluster: string, clusterName: string): Promise<number | undefined> {
  const left = await readPidFile(cluster);
  if (left !== undefined) {
    if (await isServerOf(left.pid, cluster)) await stopServer(left.pid, cluster);
    await stopBackends(clusterName);
    return left.pid;
  }
  if (!existsSync(pidFileOf(cluster))) return undefined;
  for (const { pid } of await allProcesses()) {
    if (await isServerOf(pid, cluster)) await stopServer(pid, cluster);
  }
  await stopBackends(clusterName);
  await rm(pidFileOf(cluster), { force: true });
  return undefined;
}

async function stopServer(pid: number, cluster: string): Promise<void> {
  const stopped = await stopInSteps(
    (name) => send(pid, name),
    (timeoutMs) => until(timeoutMs, async () => !(await isServerOf(pid, cluster))),
  );
  if (!stopped) throw new Error(`PostgreSQL left behind by an earlier start (process ${pid}) does not stop`);
}

/** Backends leave by themselves when their postmaster dies, unless they are stuck in a statement. */
async function stopBackends(clusterName: string): Promise<void> {
  const gone = (timeoutMs: number) =>
    until(timeoutMs, async () => (await backendsOf(clusterName)).length === 0);
  if (await gone(1_000)) return;
  for (const name of ["SIGQUIT", "SIGKILL"] as const) {
    for (const pid of await backendsOf(clusterName)) send(pid, name);
    if (await gone(3_000)) return;
  }
}

async function backendsOf(clusterName: string): Promise<number[]> {
  const processes = await allProcesses();
  return processes.filter(({ args }) => args.startsWith(`postgres: ${clusterName}: `)).map(({ pid }) => pid);
}

/** A zombie counts as gone: it has no command line any more. */
async function isServerOf(pid: number, cluster: string): Promise<boolean> {
  if (process.platform !== "linux") {
    const args = (await ps("-o", "args=", "-p", String(pid))).trim();
    const [program = ""] = args.split(" -D ", 1);
    return path.basename(program) === "postgres" && `${args} `.startsWith(`${program} -D ${cluster} `);
  }
  const [program = "", flag, directory] = (await commandLine(pid)).split("\0");
  if (path.basename(program) !== "postgres") return false;
  return (flag === "-D" && directory === cluster) || (await isSameDirectory(`/proc/${pid}/cwd`, cluster));
}

/** Postgres' working directory is its data directory: so the server is recognised even if the directory was moved. */
async function isSameDirectory(a: string, b: string): Promise<boolean> {
  try {
    const [left, right] = await Promise.all([stat(a), stat(b)]);
    return left.dev === right.dev && left.ino === right.ino;
  } catch {
    return false;
  }
}

async function allProcesses(): Promise<{ pid: number; args: string }[]> {
  if (process.platform === "linux") {
    const pids = (await readdir("/proc")).filter((name) => /^\d+$/.test(name)).map(Number);
    return Promise.all(pids.map(async (pid) => ({ pid, args: await commandLine(pid) })));
  }
  return (await ps("-A", "-o", "pid=,args=")).split("\n").map((line) => {
    const [, pid, args] = /^\s*(\d+)\s+(.*)$/.exec(line) ?? [];
    return { pid: Number(pid), args: args ?? "" };
  });
}

/** /proc rather than `ps`, which slim container images lack. Readable for other users' processes as well. */
async function commandLine(pid: number): Promise<string> {
  return readFile(`/proc/${pid}/cmdline`, "utf8").catch(() => "");
}

async function ps(...args: string[]): Promise<string> {
  return run("ps", args).then(
    ({ stdout }) => stdout,
    () => "",
  );
}

function send(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal);
  } catch {
    // It has already exited.
  }
}

/** Looks ever less often, because a look may read the command lines of all processes: a tenth of the wait so far is added. */
async function until(timeoutMs: number, condition: () => Promise<boolean>): Promise<boolean> {
  const begunAt = performance.now();
  while (!(await condition())) {
    const waitedMs = performance.now() - begunAt;
    if (waitedMs > timeoutMs) return false;
    await delay(Math.max(10, waitedMs / 10));
  }
  return true;
}
