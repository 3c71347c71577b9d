/** Two Postgres servers: a primary and its synchronous standby. */

import { execFile } from "node:child_process";
import { rm, writeFile } from "node:fs/promises";
import path from "node:path";
import { promisify } from "node:util";
import pg from "pg";
import { chownTree, type Launch } from "../../src/storage/embedded/postgres-launch.ts";
import { redactingLogSettings } from "../../src/storage/server-log.ts";
import { endProcess, type Process, startProcess, until } from "./processes.ts";

const run = promisify(execFile);

export const databaseName = "phoneproof";
export const databaseUser = "phoneproof";

export interface PostgresServer {
  readonly name: string;
  readonly port: number;
  readonly pid: number;
  /** False once it has ended, also by somebody's hand. */
  runs(): boolean;
  query(text: string): Promise<Record<string, unknown>[]>;
  /** SIGKILL, which simulates a failing machine. */
  kill(): Promise<void>;
  stop(): Promise<void>;
}

export interface PostgresServers {
  /** Creates a new, empty server. */
  create(name: string, port: number): Promise<PostgresServer>;
  /** Creates a standby as a copy of `primary`. From then on the primary waits for it at every commit. */
  follow(primary: PostgresServer, name: string, port: number): Promise<PostgresServer>;
  /** Promotes a standby. It then waits for no other server, since it was copied before its primary was configured to wait. */
  promote(standby: PostgresServer): Promise<void>;
}

export function createPostgresServers(options: {
  readonly directory: string;
  readonly binaries: string;
  readonly launch: Launch;
  readonly password: string;
}): PostgresServers {
  const { directory, binaries, launch, password } = options;
  const dataOf = (name: string) => path.join(directory, `postgres-${name}`);
  const commandOf = (program: string, args: string[]) => launch.command(path.join(binaries, program), args);

  async function once(program: string, args: string[]): Promise<void> {
    const { file, args: all, ...user } = commandOf(program, args);
    await run(file, all, { ...user, cwd: directory, env: { ...process.env, PGPASSWORD: password } });
  }

  async function start(name: string, port: number): Promise<PostgresServer> {
    const settings = Object.entries({
      listen_addresses: "127.0.0.1",
      port,
      unix_socket_directories: "",
      max_connections: 200,
      wal_keep_size: "256MB",
      hot_standby: "on",
      cluster_name: name,
      ...redactingLogSettings,
    });
    const args = settings.flatMap(([setting, value]) => ["-c", `${setting}=${value}`]);
    const server: Process = startProcess(
      commandOf("postgres", ["-D", dataOf(name), ...args]),
      path.join(directory, "log", `postgres-${name}.log`),
    );
    let running = true;
    void server.ended.then(() => {
      running = false;
    });
    const query = async (text: string) => {
      const client = new pg.Client({
        host: "127.0.0.1",
        port,
        user: databaseUser,
        password,
        database: "postgres",
        connectionTimeoutMillis: 2_000,
      });
      client.on("error", () => {});
      await client.connect();
      try {
        return (await client.query<Record<string, unknown>>(text)).rows;
      } finally {
        await client.end();
      }
    };
    await until(`Postgres ${name}`, 30_000, () => query("SELECT 1"));
    return {
      name,
      port,
      pid: server.pid,
      runs: () => running,
      query,
      async kill() {
        server.kill("SIGKILL");
        await server.ended;
      },
      stop: () =>
        endProcess(server, [
          ["SIGINT", 8_000],
          ["SIGQUIT", 3_000],
        ]),
    };
  }

  return {
    async create(name, port) {
      const passwordFile = path.join(directory, "password");
      await writeFile(passwordFile, password, { mode: 0o600 });
      if (launch.owner !== undefined) await chownTree(launch.owner, directory);
      await once("initdb", [
        `--pgdata=${dataOf(name)}`,
        `--username=${databaseUser}`,
        `--pwfile=${passwordFile}`,
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        "--locale=C.UTF-8",
      ]);
      await rm(passwordFile);
      const server = await start(name, port);
      await server.query(`CREATE DATABASE ${databaseName}`);
      return server;
    },

    async follow(primary, name, port) {
      await rm(dataOf(name), { recursive: true, force: true });
      await once("pg_basebackup", [
        `--dbname=host=127.0.0.1 port=${primary.port} user=${databaseUser} application_name=${name}`,
        `--pgdata=${dataOf(name)}`,
        "--write-recovery-conf",
        "--wal-method=stream",
        "--checkpoint=fast",
      ]);
      const standby = await start(name, port);
      await primary.query(`ALTER SYSTEM SET synchronous_standby_names = 'FIRST 1 (${name})'`);
      await primary.query("SELECT pg_reload_conf()");
      await until(`${name} as synchronous standby of ${primary.name}`, 30_000, async () => {
        const [row] = await primary.query("SELECT sync_state FROM pg_stat_replication");
        if (row?.sync_state !== "sync") throw new Error(`it is ${row?.sync_state ?? "not connected"}`);
      });
      return standby;
    },

    async promote(standby) {
      const [row] = await standby.query("SELECT pg_promote(wait_seconds => 30) AS promoted");
      if (row?.promoted !== true) throw new Error(`${standby.name} was not promoted within 30 s`);
    },
  };
}
