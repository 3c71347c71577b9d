/** One Postgres for the whole run, with a migrated template that every suite's database is a copy of. */
import { existsSync, readFileSync, rmSync } from "node:fs";
import { mkdtemp, readdir, readFile, rm, statfs } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import pg from "pg";
import type { TestProject } from "vitest/node";
import { startEmbeddedPostgres } from "../../src/storage/embedded-postgres.ts";
import { applyMigrations } from "../../src/storage/migrations.ts";

declare module "vitest" {
  interface ProvidedContext {
    postgres: TestServer;
  }
}

/** The server that a run shares, and its template database. */
export interface TestServer {
  host: string;
  port: number;
  user: string;
  password: string;
  template: string;
}

const PREFIX = "phoneproof-test-";

export default async function setup(project: TestProject): Promise<() => Promise<void>> {
  // For every process of the run: a third of the time of most is their start.
  process.env.NODE_COMPILE_CACHE = path.join(import.meta.dirname, "../../.cache/compiled");
  process.env.TMPDIR = (await directoryInMemory()) ?? os.tmpdir();
  await removeLeftovers();
  const dataDir = await mkdtemp(path.join(os.tmpdir(), `${PREFIX}${process.pid}-`));
  // TCP, so that the URL given to a service under test looks like one from the real world.
  const server = await startEmbeddedPostgres({
    dataDir,
    transport: "tcp",
    settings: {
      // Nothing here outlives the run.
      fsync: "off",
      full_page_writes: "off",
      wal_level: "minimal",
      max_wal_senders: "0",
      // With a database for every suite, a worker would look at one of them every second.
      autovacuum: "off",
      max_connections: "400",
      shared_buffers: "128MB",
      // Told in tests' logs, which nobody else reads.
      log_error_verbosity: "default",
      log_min_error_statement: "error",
    },
  });
  const endAtOnce = () => stopAtOnce(dataDir);
  process.once("exit", endAtOnce);
  const stop = async () => {
    await server.stop();
    process.off("exit", endAtOnce);
    await rm(dataDir, { recursive: true, force: true });
  };
  try {
    const { host, port, user, password = "" } = server.connection;
    const admin = new pg.Client({ ...server.connection, database: "postgres" });
    await admin.connect();
    // Two thousand connections prove the password with some milliseconds each, on both sides.
    await admin.query("SET scram_iterations = 1");
    await admin.query(`ALTER ROLE ${user} PASSWORD ${admin.escapeLiteral(password)}`);
    await admin.query("CREATE DATABASE template_migrated");
    await applyMigrations(
      { ...server.connection, database: "template_migrated" },
      { folder: path.join(import.meta.dirname, "../../prisma/migrations") },
    );
    // A connection to a template blocks copying it.
    await admin.query("ALTER DATABASE template_migrated ALLOW_CONNECTIONS false");
    await admin.end();
    project.provide("postgres", { host, port, user, password, template: "template_migrated" });
  } catch (error) {
    await stop();
    throw error;
  }
  return stop;
}

/** Where copies of databases cost a fifth of what they do on a disk, if there is room for a run's. */
async function directoryInMemory(): Promise<string | undefined> {
  if (process.platform !== "linux" || process.env.TMPDIR !== undefined) return undefined;
  const directory = "/dev/shm";
  const room = 4 * 1024 ** 3;
  const mounted = (await readFile("/proc/mounts", "utf8"))
    .split("\n")
    .find((line) => line.split(" ")[1] === directory);
  if (mounted === undefined || !/ rw\b/.test(mounted) || /\bnoexec\b/.test(mounted)) return undefined;
  const { bavail, bsize } = await statfs(directory);
  return bavail * bsize > room && process.availableMemory() > 2 * room ? directory : undefined;
}

/** For an end that waits for nothing, as vitest's is on Ctrl-C. */
function stopAtOnce(dataDir: string): void {
  const pidFile = path.join(dataDir, "postgres", "postmaster.pid");
  if (existsSync(pidFile)) process.kill(Number.parseInt(readFileSync(pidFile, "utf8"), 10), "SIGQUIT");
  const pause = new Int32Array(new SharedArrayBuffer(4));
  const deadline = Date.now() + 3_000;
  while (existsSync(pidFile) && Date.now() < deadline) Atomics.wait(pause, 0, 0, 10);
  rmSync(dataDir, { recursive: true, force: true, maxRetries: 3 });
}

/** A run that was killed could not clean up. Its directory names the process; its Postgres lives on without it. */
async function removeLeftovers(): Promise<void> {
  for (const name of await readdir(os.tmpdir())) {
    const pid = Number(new RegExp(`^${PREFIX}(\\d+)-`).exec(name)?.[1]);
    if (!(pid > 0) || isAlive(pid)) continue;
    const dataDir = path.join(os.tmpdir(), name);
    // Starting is what takes over, and so stops, a server left behind.
    const server = await startEmbeddedPostgres({ dataDir, transport: "tcp" }).catch(() => undefined);
    await server?.stop();
    await rm(dataDir, { recursive: true, force: true });
  }
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM";
  }
}
