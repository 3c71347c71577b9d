/** The embedded Postgres as it is started, used and stopped. Whatever stands in its way has files of its own. */

import { existsSync } from "node:fs";
import {
  chmod,
  type FileHandle,
  mkdir,
  open,
  readdir,
  readFile,
  rename,
  stat,
  writeFile,
} from "node:fs/promises";
import path from "node:path";
import pg from "pg";
import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from "vitest";
import { makeDirectory as makeMissing } from "../../src/storage/embedded/data-directory.ts";
import {
  type EmbeddedPostgres,
  startEmbeddedPostgres,
} from "../../src/storage/embedded/embedded-postgres.ts";
import {
  canRunAsOther,
  cleanUp,
  dataDir,
  emptyDirectory,
  foreign,
  initialise,
  isAlive,
  makeDirectory,
  pidFile,
  prepareDataDirectories,
  query,
  removeDirectory,
  serverPid,
  start,
  startObstructed,
  startService,
  until,
} from "./embedded-server.ts";

prepareDataDirectories();

test("a first start creates a durable PostgreSQL 18 with the service's database, in UTF-8 and UTC", async () => {
  const shown = await query(
    await start(),
    `SELECT current_setting('server_version_num')::int / 10000, current_database(), current_setting('fsync'),
            current_setting('synchronous_commit'), current_setting('TimeZone'), upper('ä')`,
  );
  expect(shown).toEqual([18, "phoneproof", "on", "on", "UTC", "Ä"]);
});

describe("environment variables for other Postgres programs", () => {
  // Root's service on another user's data, below, is started in the same way.
  if (!canRunAsOther)
    test("do not keep a service from its own database, nor does an output that takes nothing", async () => {
      const service = await startObstructed();
      service.child.kill("SIGTERM");
      expect(await service.ended()).toBe(0);
    });

  test("do not change sessions", async () => {
    for (const [name, value] of Object.entries(foreign)) vi.stubEnv(name, value);
    onTestFinished(() => {
      vi.unstubAllEnvs();
    });
    await initialise();
    const server = await start();
    expect(
      await query(
        server,
        `SELECT current_setting('synchronous_commit'), current_setting('statement_timeout'), current_schema,
                current_setting('application_name')`,
      ),
    ).toEqual(["on", "0", "public", "phoneproof"]);
  });
});

describe("the server", () => {
  let ownDir: string;
  let server: EmbeddedPostgres;

  beforeAll(async () => {
    ownDir = await makeDirectory();
    await initialise(ownDir);
    const lock = path.join(ownDir, "postgres.lock");
    await writeFile(lock, "");
    await chmod(lock, 0o644);
    server = await startEmbeddedPostgres({ dataDir: ownDir });
  });

  afterAll(async () => {
    await server.stop();
    await removeDirectory(ownDir);
  });

  test("can be reached only over a socket in a private directory", async () => {
    expect((await stat(server.connection.host)).mode & 0o777).toBe(0o700);
    expect(await query(server, "SELECT current_setting('listen_addresses')")).toEqual([""]);
    expect((await stat(path.join(ownDir, "postgres"))).mode & 0o777).toBe(0o700);
  });

  test("requires the password", async () => {
    const connection = { ...server.connection, password: "wrong" };
    await expect(query({ connection }, "SELECT 1")).rejects.toThrow("password authentication failed");
  });

  test("writes no values of rows into its log", async () => {
    await query(server, "CREATE TABLE person (phone text PRIMARY KEY)");
    const twice = "INSERT INTO person VALUES ('01012345678'), ('01012345678')";
    await expect(query(server, twice)).rejects.toThrow("duplicate key");
    const log = await readFile(path.join(ownDir, "postgres.log"), "utf8");
    expect(log).toContain("duplicate key");
    expect(log).not.toContain("01012345678");
  });

  test("cannot be locked out by another account, which cannot open the lock", async () => {
    expect((await stat(path.join(ownDir, "postgres.lock"))).mode & 0o777).toBe(0o600);
  });

  test("keeps a second one on its data directory from starting, within one process, too", async () => {
    await expect(start({ dataDir: ownDir })).rejects.toThrow("is in use by another running service");
    expect(await query(server, "SELECT 1")).toEqual([1]);
  });

  test("lets given settings override its own, and uses 127.0.0.1 with transport tcp", async () => {
    await initialise();
    const server = await start({ transport: "tcp", settings: { max_connections: "17", fsync: "off" } });
    expect(server.connection.host).toBe("127.0.0.1");
    expect(
      await query(server, "SELECT current_setting('max_connections'), current_setting('fsync')"),
    ).toEqual(["17", "off"]);
  });

  test("uses a shorter socket path if the data directory's is too long, and leaves nothing there", async () => {
    await initialise();
    const deep = path.join(dataDir, "d".repeat(100));
    await mkdir(deep);
    await rename(path.join(dataDir, "postgres"), path.join(deep, "postgres"));
    const server = await start({ dataDir: deep });
    const { host } = server.connection;
    expect(await query(server, "SELECT 1")).toEqual([1]);
    expect(Buffer.byteLength(host)).toBeLessThan(100);
    await server.stop();
    expect(existsSync(host)).toBe(false);
  });
});

test("a start whose connection breaks while it creates the database fails, and leaves no server", async () => {
  await initialise();
  const settings = { max_prepared_transactions: "1" };
  const first = await start({ settings });
  const connection = { ...first.connection, database: "postgres" };
  const client = new pg.Client(connection);
  await client.connect();
  await client.query("DROP DATABASE phoneproof");
  // Outlives its session and its server, and lets no database be created.
  await client.query("BEGIN; LOCK TABLE pg_database IN SHARE MODE; PREPARE TRANSACTION 'held'");
  await client.end();
  await first.stop();
  const failure = expect(start({ settings })).rejects.toThrow("PostgreSQL has started but does not answer: ");
  const creating =
    "SELECT pid FROM pg_stat_activity WHERE query LIKE 'CREATE DATABASE%' AND state = 'active'";
  const [backend] = await vi.waitUntil(async () => {
    const found = await query({ connection }, creating).catch(() => []);
    return found.length > 0 && found;
  }, until);
  const pid = await serverPid();
  process.kill(Number(backend), "SIGKILL");
  await failure;
  expect(isAlive(pid)).toBe(false);
});

test("a data directory may have any name, even with Postgres's own separators", async () => {
  await initialise();
  const named = path.join(dataDir, 'a, "b"');
  await mkdir(named);
  await rename(path.join(dataDir, "postgres"), path.join(named, "postgres"));
  const server = await startEmbeddedPostgres({ dataDir: named });
  cleanUp.push(server.stop);
  expect(await query(server, "SELECT 1")).toEqual([1]);
  expect(server.connection.host.startsWith(named)).toBe(true);
});

test("a first start survives a power failure: its password is flushed to disk, and then its name", async () => {
  const cluster = path.join(dataDir, "postgres");
  const flushed: { ino: number; isNamed: boolean }[] = [];
  const handle = await open(dataDir, "r");
  const sync = vi.spyOn(Object.getPrototypeOf(handle) as FileHandle, "sync");
  sync.mockImplementation(async function (this: FileHandle) {
    flushed.push({ ino: (await this.stat()).ino, isNamed: existsSync(cluster) });
  });
  onTestFinished(() => sync.mockRestore());
  await handle.close();
  await start();
  const [password, directory] = await Promise.all([
    stat(path.join(cluster, "phoneproof.password")),
    stat(dataDir),
  ]);
  expect(flushed).toEqual([
    { ino: password.ino, isNamed: false },
    { ino: directory.ino, isNamed: true },
  ]);
});

test("services that start at once can share directories that are missing", async () => {
  const above = path.join(await emptyDirectory(), "shared/above");
  const names = Array.from({ length: 8 }, (_, n) => path.join(above, `data-${n}`));
  expect(await Promise.all(names.map((name) => makeMissing(name)))).toEqual(names);
});

test("a restart keeps the data, and a stop leaves no socket directory behind", async () => {
  await initialise();
  const before = await start();
  await query(before, "CREATE TABLE kept AS SELECT 42 AS answer");
  await before.stop();
  expect((await readdir(dataDir)).sort()).toEqual(["postgres", "postgres.lock", "postgres.log"]);
  const after = await start();
  expect(await query(after, "SELECT answer FROM kept")).toEqual([42]);
});

test("a database that was copied without its mode, which Postgres would refuse, starts", async () => {
  await initialise();
  const cluster = path.join(dataDir, "postgres");
  await chmod(cluster, 0o755);
  expect(await query(await start(), "SELECT 1")).toEqual([1]);
  expect((await stat(cluster)).mode & 0o777).toBe(0o700);
});

test("stop ends the server, also when called twice, and its log is kept to the last line", async () => {
  await initialise();
  const server = await start();
  const pid = await serverPid();
  await Promise.all([server.stop(), server.stop()]);
  expect(isAlive(pid)).toBe(false);
  expect(existsSync(pidFile())).toBe(false);
  const lines = (await readFile(path.join(dataDir, "postgres.log"), "utf8")).trimEnd().split("\n");
  expect(lines).toContainEqual(expect.stringContaining("ready to accept connections"));
  expect(lines.at(-1)).toContain("database system is shut down");
});

test("a server that no longer reacts can still be stopped", async () => {
  await initialise();
  const server = await start();
  const pid = await serverPid();
  process.kill(pid, "SIGSTOP");
  await server.stop();
  expect(isAlive(pid)).toBe(false);
});

test("Ctrl-C in the service's terminal does not reach the server", async () => {
  await initialise();
  const { child, lines } = await startService();
  expect(await lines.next()).toMatchObject({ value: "ready" });
  process.kill(-(child.pid ?? Number.NaN), "SIGINT");
  expect(await lines.next()).toMatchObject({ value: "still here" });
});
