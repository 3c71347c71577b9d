/** What the tests of the embedded Postgres need: data directories, servers and services on them, and another user of the system. */

import { type ChildProcess, execFile, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { mkdtemp, readFile, realpath, rm } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";
import { promisify } from "node:util";
import pg from "pg";
import { afterAll, afterEach, beforeAll, beforeEach, expect } from "vitest";
import {
  type EmbeddedPostgres,
  type EmbeddedPostgresOptions,
  startEmbeddedPostgres,
} from "../../src/storage/embedded/embedded-postgres.ts";
import { startProcess } from "../ops/service-process.ts";

/** For conditions that other processes bring about; one that never becomes true fails the test. */
export const until = { timeout: 45_000, interval: 10 };
export const root = path.join(import.meta.dirname, "../..");
/** What ends with the test. */
export const cleanUp: (() => unknown)[] = [];
/** The result of a first start and a clean stop. A copy of it saves most tests an initialisation. */
export let initialised: string;
/** Empty, until a test copies what is initialised. */
export let dataDir: string;

export function setDataDir(directory: string): void {
  dataDir = directory;
}

/** To be called by each file: provides its tests with both of them. */
export function prepareDataDirectories(): void {
  beforeAll(async () => {
    initialised = await makeDirectory();
    await (await startEmbeddedPostgres({ dataDir: initialised })).stop();
    await rm(path.join(initialised, "postgres.log"));
  });
  afterAll(() => removeDirectory(initialised));
  beforeEach(async () => {
    dataDir = await emptyDirectory();
  });
  afterEach(async () => {
    for (const task of cleanUp.splice(0).reverse()) await task();
  });
}

export const makeDirectory = async () =>
  realpath(await mkdtemp(path.join(os.tmpdir(), "phoneproof-embedded-")));
export const removeDirectory = (directory: string) =>
  rm(directory, { recursive: true, force: true, maxRetries: 5 });

export const initialise = (directory = dataDir) =>
  promisify(execFile)("cp", ["-a", `${initialised}/.`, directory]);

export async function emptyDirectory(): Promise<string> {
  const directory = await makeDirectory();
  cleanUp.push(() => removeDirectory(directory));
  return directory;
}

export async function start(options: Partial<EmbeddedPostgresOptions> = {}): Promise<EmbeddedPostgres> {
  const server = await startEmbeddedPostgres({ dataDir, ...options });
  cleanUp.push(server.stop);
  return server;
}

export async function query(server: Pick<EmbeddedPostgres, "connection">, text: string): Promise<unknown[]> {
  const client = new pg.Client(server.connection);
  await client.connect();
  try {
    return (await client.query({ text, rowMode: "array" })).rows.flat();
  } finally {
    await client.end();
  }
}

export const pidFile = (directory = dataDir) => path.join(directory, "postgres", "postmaster.pid");

export async function serverPid(directory = dataDir): Promise<number> {
  return Number.parseInt(await readFile(pidFile(directory), "utf8"), 10);
}

export function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

/** Arguments of Node for a process that starts Postgres on `directory`, and says why if that fails. */
export function startOf(directory: string): string[] {
  const script = `
    import { startEmbeddedPostgres } from ${JSON.stringify(path.join(root, "src/storage/embedded/embedded-postgres.ts"))};
    await startEmbeddedPostgres({ dataDir: ${JSON.stringify(directory)} }).catch((error) => {
      console.error(error.message);
      process.exitCode = 1;
    });`;
  return ["--input-type=module", "-e", script];
}

/**
 * A service in a process of its own that starts Postgres on `dataDir` and says so. On SIGINT it prints a query's
 * result and continues.
 */
export async function startService(): Promise<{ child: ChildProcess; lines: AsyncIterator<string> }> {
  const require = (file: string) => JSON.stringify(path.join(import.meta.dirname, "../..", file));
  const script = `
    import pg from ${require("node_modules/pg/esm/index.mjs")};
    import { startEmbeddedPostgres } from ${require("src/storage/embedded/embedded-postgres.ts")};
    const server = await startEmbeddedPostgres({ dataDir: ${JSON.stringify(dataDir)} });
    process.on("SIGINT", async () => {
      const client = new pg.Client(server.connection);
      await client.connect();
      console.log((await client.query("SELECT 'still here' AS answer")).rows[0].answer);
      await client.end();
    });
    console.log("ready");
    setInterval(() => {}, 1000);`;
  const child = spawn(process.execPath, ["--input-type=module", "-e", script], {
    stdio: ["ignore", "pipe", "inherit"],
    detached: true,
  });
  const gone = once(child, "exit");
  cleanUp.push(async () => {
    child.kill("SIGKILL");
    await gone;
    await (await startEmbeddedPostgres({ dataDir })).stop();
  });
  return { child, lines: createInterface({ input: child.stdout })[Symbol.asyncIterator]() };
}

/** A user without an account, as in a container. */
export const otherUid = 20_817;
export const asOther = { uid: otherUid, gid: otherUid };
export const canRunAsOther =
  process.geteuid?.() === 0 &&
  spawnSync("test", ["-x", os.tmpdir(), "-a", "-r", import.meta.filename], asOther).status === 0;

/** Environment variables for other Postgres programs. */
export const foreign = {
  PGHOST: "elsewhere.invalid",
  PGPORT: "1",
  PGUSER: "somebody",
  PGPASSWORD: "wrong",
  PGDATABASE: "nowhere",
  PGSSLMODE: "verify-full",
  PGSSLNEGOTIATION: "direct",
  PGOPTIONS: "-c synchronous_commit=off -c statement_timeout=1 -c search_path=nix",
  PGREPLICATION: "true",
  PGAPPNAME: "mine",
};

/**
 * A service on `dataDir` with these variables, which cannot print where it listens if the system has the device of a full disk.
 */
export async function startObstructed() {
  const output = existsSync("/dev/full") ? { file: "/dev/full" } : undefined;
  const service = await startProcess({ DATA_DIR: dataDir, ...foreign }, output);
  expect((await fetch(`${service.httpUrl}/no-such-route`)).status).toBe(404);
  return service;
}
