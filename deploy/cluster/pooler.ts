/** PgBouncer: the only database address that the service knows, and the one place that says where the primary is. */

import { execFile } from "node:child_process";
import { chown, rename, writeFile } from "node:fs/promises";
import path from "node:path";
import { promisify } from "node:util";
import { statementTimeoutMs } from "../../src/storage/database.ts";
import type { Launch } from "../../src/storage/embedded/postgres-launch.ts";
import { databaseName, databaseUser } from "./postgres.ts";
import { endProcess, type Process, startProcess } from "./processes.ts";

export interface Pooler {
  readonly pid: number;
  /** For DATABASE_URL, DATABASE_NOTICES_URL and DATABASE_PREPARED_STATEMENTS. */
  readonly settings: Readonly<Record<string, string>>;
  /** Redirects all connections to another primary. */
  pointAt(port: number): Promise<void>;
  stop(): Promise<void>;
}

/**
 * The session settings that the service requests when it connects, which a transaction pooler cannot keep per client. They are
 * therefore set once for every connection to the server.
 */
const connectQuery = [
  "SET timezone = UTC",
  `SET statement_timeout = ${statementTimeoutMs}`,
  `SET idle_in_transaction_session_timeout = ${statementTimeoutMs}`,
  "SET plan_cache_mode = force_generic_plan",
  "SET enable_seqscan = off",
  "SET jit = off",
].join("; ");

export async function startPooler(options: {
  readonly directory: string;
  readonly binary: string;
  readonly launch: Launch;
  readonly password: string;
  readonly port: number;
  readonly primaryPort: number;
}): Promise<Pooler> {
  const { directory, binary, launch, password, port } = options;
  const preparedStatements = await keepsPreparedStatements(binary);
  const users = path.join(directory, "pgbouncer-users.txt");
  const configuration = path.join(directory, "pgbouncer.ini");

  async function write(primaryPort: number): Promise<void> {
    const server = `host=127.0.0.1 port=${primaryPort} dbname=${databaseName} connect_query='${connectQuery}'`;
    const text = [
      "[databases]",
      `${databaseName} = ${server}`,
      // For LISTEN connections: notifications are delivered to a session, not to a transaction.
      `${databaseName}_session = ${server} pool_mode=session`,
      "",
      "[pgbouncer]",
      "listen_addr = 127.0.0.1",
      `listen_port = ${port}`,
      "unix_socket_dir =",
      "auth_type = scram-sha-256",
      `auth_file = ${users}`,
      `admin_users = ${databaseUser}`,
      "pool_mode = transaction",
      "default_pool_size = 40",
      "max_client_conn = 1000",
      ...(preparedStatements ? ["max_prepared_statements = 200"] : []),
      "ignore_startup_parameters = extra_float_digits,statement_timeout,idle_in_transaction_session_timeout",
      // If the primary is unavailable, PgBouncer retries once a second, and clients get an error before their own timeout.
      "server_connect_timeout = 2",
      "server_login_retry = 1",
      "query_wait_timeout = 5",
      "",
    ].join("\n");
    await writePrivately(configuration, text);
  }

  /** Writes atomically, and readable only by the server's user. */
  async function writePrivately(file: string, text: string): Promise<void> {
    await writeFile(`${file}.new`, text, { mode: 0o600 });
    if (launch.owner !== undefined) await chown(`${file}.new`, launch.owner.uid, launch.owner.gid);
    await rename(`${file}.new`, file);
  }

  await writePrivately(users, `"${databaseUser}" "${password}"\n`);
  await write(options.primaryPort);
  const pooler: Process = startProcess(
    launch.command(binary, [configuration]),
    path.join(directory, "log", "pgbouncer.log"),
  );
  const url = `postgres://${databaseUser}:${password}@127.0.0.1:${port}/${databaseName}`;
  return {
    pid: pooler.pid,
    settings: {
      DATABASE_URL: url,
      DATABASE_NOTICES_URL: `${url}_session`,
      DATABASE_PREPARED_STATEMENTS: String(preparedStatements),
    },
    async pointAt(primaryPort) {
      await write(primaryPort);
      pooler.kill("SIGHUP");
    },
    stop: () => endProcess(pooler, [["SIGTERM", 3_000]]),
  };
}

/** PgBouncer supports prepared statements in transaction mode since 1.21; Debian 12 has 1.18. */
async function keepsPreparedStatements(binary: string): Promise<boolean> {
  const { stdout } = await promisify(execFile)(binary, ["--version"]);
  const [, major, minor] = /PgBouncer (\d+)\.(\d+)/.exec(stdout) ?? [];
  return Number(major) > 1 || Number(minor) >= 21;
}
