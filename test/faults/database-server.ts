/** The Postgres that faults are applied to: the embedded one, which restarts itself when it dies. */

import { execFile } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { readdir, readFile } from "node:fs/promises";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { promisify } from "node:util";
import pg from "pg";
import { startEmbeddedPostgres } from "../../src/storage/embedded/embedded-postgres.ts";
import { readPidFile } from "../../src/storage/embedded/postgres-orphans.ts";

const run = promisify(execFile);

export interface DatabaseServer {
  readonly host: string;
  readonly port: number;
  readonly connection: pg.ClientConfig;
  /** Postgres's own data directory. */
  readonly cluster: string;
  /** Runs a statement on a connection of its own that bypasses every proxy. */
  query<Row extends pg.QueryResultRow>(text: string, values?: unknown[]): Promise<Row[]>;
  /** The postmaster first, then its children. */
  pids(): Promise<number[]>;
  /** Sends a signal to all of its processes. */
  signal(name: NodeJS.Signals): Promise<void>;
  /** Resolves when Postgres answers queries. */
  ready(): Promise<void>;
  stop(): Promise<void>;
}

const readyTimeoutMs = 60_000;

export async function startDatabaseServer(
  dataDir: string,
  settings: Record<string, string>,
): Promise<DatabaseServer> {
  const server = await startEmbeddedPostgres({ dataDir, transport: "tcp", settings });
  const { connection } = server;
  const cluster = path.join(dataDir, "postgres");
  // For Ctrl-C: Postgres runs in its own session and would keep running.
  const endAtOnce = () => {
    const pidFile = path.join(cluster, "postmaster.pid");
    if (existsSync(pidFile)) signalIfThere(Number.parseInt(readFileSync(pidFile, "utf8"), 10), "SIGQUIT");
  };
  // Prepended, so that it runs before the disk is unmounted.
  process.prependOnceListener("exit", endAtOnce);
  return {
    ...databaseServer(connection, cluster),
    async stop() {
      process.off("exit", endAtOnce);
      await server.stop();
    },
  };
}

export function databaseServer(
  connection: { readonly host: string; readonly port: number } & pg.ClientConfig,
  cluster: string,
): Omit<DatabaseServer, "stop"> {
  const { host, port } = connection;

  async function query<Row extends pg.QueryResultRow>(text: string, values: unknown[] = []): Promise<Row[]> {
    const client = new pg.Client({ ...connection, connectionTimeoutMillis: 20_000, query_timeout: 30_000 });
    client.on("error", () => {});
    await client.connect();
    try {
      return (await client.query<Row>(text, values)).rows;
    } finally {
      await client.end().catch(() => {});
    }
  }

  async function pids(): Promise<number[]> {
    const postmaster = (await readPidFile(cluster))?.pid;
    if (postmaster === undefined) return [];
    const all = await allProcesses();
    return [postmaster, ...all.filter(({ parent }) => parent === postmaster).map(({ pid }) => pid)];
  }

  return {
    host,
    port,
    connection,
    cluster,
    query,
    pids,
    async signal(name) {
      for (const pid of await pids()) signalIfThere(pid, name);
    },
    async ready() {
      const deadline = performance.now() + readyTimeoutMs;
      for (;;) {
        const error = await query("SELECT 1").then(
          () => undefined,
          (thrown: unknown) => thrown,
        );
        if (error === undefined) return;
        if (performance.now() > deadline) throw error;
        await delay(20);
      }
    },
  };
}

/** Every process with its parent's id. On Linux by /proc, since slim container images lack `ps`. */
async function allProcesses(): Promise<{ pid: number; parent: number }[]> {
  if (process.platform === "linux") {
    const pids = (await readdir("/proc")).filter((name) => /^\d+$/.test(name)).map(Number);
    return Promise.all(
      pids.map(async (pid) => {
        const stat = await readFile(`/proc/${pid}/stat`, "utf8").catch(() => "");
        // The program's name, in parentheses, may contain anything.
        return { pid, parent: Number(stat.slice(stat.lastIndexOf(")")).split(" ")[2]) };
      }),
    );
  }
  const { stdout } = await run("ps", ["-A", "-o", "pid=,ppid="]);
  return stdout
    .trim()
    .split("\n")
    .map((line) => {
      const [pid = 0, parent = 0] = line.trim().split(/\s+/).map(Number);
      return { pid, parent };
    });
}

export function signalIfThere(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch {
    // The process has already ended.
  }
}
