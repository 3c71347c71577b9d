/** The Postgres that is to suffer: the embedded one, which starts again by itself when it dies. */

import { execFile } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { promisify } from "node:util";
import pg from "pg";
import { startEmbeddedPostgres } from "../../src/storage/embedded-postgres.ts";
import { readPidFile } from "../../src/storage/postgres-orphans.ts";

const run = promisify(execFile);

export interface DatabaseServer {
  readonly host: string;
  readonly port: number;
  readonly connection: pg.ClientConfig;
  /** The data directory of Postgres itself. */
  readonly cluster: string;
  /** Runs statements on a connection of their own, past every proxy. */
  query<Row extends pg.QueryResultRow>(text: string, values?: unknown[]): Promise<Row[]>;
  /** The postmaster first, then its children. */
  pids(): Promise<number[]>;
  /** A signal for all of its processes. */
  signal(name: NodeJS.Signals): Promise<void>;
  /** Until it answers. */
  ready(): Promise<void>;
  stop(): Promise<void>;
}

const readyPatienceMs = 60_000;

export async function startDatabaseServer(
  dataDir: string,
  settings: Record<string, string>,
): Promise<DatabaseServer> {
  const server = await startEmbeddedPostgres({ dataDir, transport: "tcp", settings });
  const { connection } = server;
  const cluster = path.join(dataDir, "postgres");
  // Ctrl-C: it is in a session of its own, and would stay.
  const endAtOnce = () => {
    const pidFile = path.join(cluster, "postmaster.pid");
    if (existsSync(pidFile)) signalIfThere(Number.parseInt(readFileSync(pidFile, "utf8"), 10), "SIGQUIT");
  };
  // Before its disk is unmounted.
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
    const { stdout } = await run("ps", ["-A", "-o", "pid=,ppid="]);
    const children = stdout
      .trim()
      .split("\n")
      .map((line) => line.trim().split(/\s+/).map(Number))
      .filter(([, parent]) => parent === postmaster)
      .map(([pid = 0]) => pid);
    return [postmaster, ...children];
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
      const deadline = performance.now() + readyPatienceMs;
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

export function signalIfThere(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name);
  } catch {
    // It has gone by itself.
  }
}
