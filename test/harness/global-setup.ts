/** One Postgres for the whole run, with a migrated template that each suite's database is copied from. */
import { existsSync, readFileSync, rmSync } from "node:fs";
import { mkdtemp, readdir, readFile, rm, statfs } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import pg from "pg";
import type { TestProject } from "vitest/node";
import { startEmbeddedPostgres } from "../../src/storage/embedded/embedded-postgres.ts";
import { applyMigrations } from "../../src/storage/migrations.ts";
import { blockFor } from "./blocking.ts";

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
  // For every process of the run: most spend a third of their time on starting.
  process.env.NODE_COMPILE_CACHE = path.join(import.meta.dirname, "../../.cache/compiled");
  process.env.TMPDIR = (await directoryInMemory()) ?? os.tmpdir();
  await removeLeftovers();
  const dataDir = await mkdtemp(path.join(os.tmpdir(), `${PREFIX}${process.pid}-`));
  // TCP, so that the URL for a service under test looks like a real one.
  const server = await startEmbeddedPostgres({
    dataDir,
    transport: "tcp",
    settings: {
      // No data has to survive the run.
      fsync: "off",
      full_page_writes: "off",
      wal_level: "minimal",
      wal_compression: "off",
      max_wal_senders: "0",
      // With one database per suite, an autovacuum worker would visit one of them every second.
      autovacuum: "off",
      max_connections: "400",
      shared_buffers: "128MB",
      // Written to the tests' own logs, which nobody else reads.
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
    // Password verification would otherwise cost some milliseconds on both sides for each of two thousand connections.
    await admin.query("SET scram_iterations = 1");
    await admin.query(`ALTER ROLE ${user} PASSWORD ${admin.escapeLiteral(password)}`);
    await admin.query("CREATE DATABASE template_migrated");
    await applyMigrations(
      { ...server.connection, database: "template_migrated" },
      { folder: path.join(import.meta.dirname, "../../prisma/migrations") },
    );
    // An open connection to the template would block copying it.
    await admin.query("ALTER DATABASE template_migrated ALLOW_CONNECTIONS false");
    await admin.end();
    project.provide("postgres", { host, port, user, password, template: "template_migrated" });
  } catch (error) {
    await stop();
    throw error;
  }
  return stop;
}

/** A tmpfs, where copying databases costs a fifth of what it does on a disk, if there is room for a run's. */
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

/** Stops Postgres synchronously, for an exit that does not wait, such as vitest's on Ctrl-C. */
function stopAtOnce(dataDir: string): void {
  const pidFile = path.join(dataDir, "postgres", "postmaster.pid");
  if (existsSync(pidFile)) process.kill(Number.parseInt(readFileSync(pidFile, "utf8"), 10), "SIGQUIT");
  const deadline = Date.now() + 3_000;
  while (existsSync(pidFile) && Date.now() < deadline) blockFor(10);
  rmSync(dataDir, { recursive: true, force: true, maxRetries: 3 });
}

/**
 * Cleans up after a run that was killed and could not do it itself. Its directory names the process; its Postgres is still
 * running.
 */
async function removeLeftovers(): Promise<void> {
  for (const name of await readdir(os.tmpdir())) {
    const pid = Number(new RegExp(`^${PREFIX}(\\d+)-`).exec(name)?.[1]);
    if (!(pid > 0) || isAlive(pid)) continue;
    const dataDir = path.join(os.tmpdir(), name);
    // Starting takes over a server that was left running, so that it can be stopped.
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
