import { type ChildProcess, execFile, spawn, spawnSync } from "node:child_process";
import { EventEmitter, once } from "node:events";
import { existsSync } from "node:fs";
import {
  chmod,
  chown,
  copyFile,
  type FileHandle,
  link,
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
  symlink,
  truncate,
  writeFile,
} from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";
import { DatabaseSync } from "node:sqlite";
import { text } from "node:stream/consumers";
import { setImmediate } from "node:timers/promises";
import { promisify } from "node:util";
import pg from "pg";
import {
  afterAll,
  afterEach,
  beforeAll,
  beforeEach,
  describe,
  expect,
  onTestFailed,
  onTestFinished,
  test,
  vi,
} from "vitest";
import { lockDataDir, makeDirectory as makeMissing } from "../../src/storage/embedded/data-directory.ts";
import {
  type EmbeddedPostgres,
  type EmbeddedPostgresOptions,
  startEmbeddedPostgres,
} from "../../src/storage/embedded/embedded-postgres.ts";
import { initialiseCluster } from "../../src/storage/embedded/postgres-cluster.ts";
import { chooseLaunch } from "../../src/storage/embedded/postgres-launch.ts";
import { openLog, reasonIn } from "../../src/storage/embedded/postgres-log.ts";
import { startServer, supervise } from "../../src/storage/embedded/postgres-process.ts";
import { noteAbsence } from "../harness/absent-tools.ts";
import { plainEnvironment } from "../harness/environment.ts";
import { startProcess } from "../ops/service-process.ts";

/** For conditions that other processes bring about; one that never becomes true fails the test. */
const until = { timeout: 45_000, interval: 10 };
const root = path.join(import.meta.dirname, "../..");
const cleanUp: (() => unknown)[] = [];
/** The result of a first start and a clean stop. A copy of it saves most tests an initialisation. */
let initialised: string;
let afterFirstStart: unknown[];
/** Empty, until a test copies what is initialised. */
let dataDir: string;

beforeAll(async () => {
  initialised = await makeDirectory();
  const server = await startEmbeddedPostgres({ dataDir: initialised });
  afterFirstStart = await query(
    server,
    `SELECT current_setting('server_version_num')::int / 10000, current_database(), current_setting('fsync'),
            current_setting('synchronous_commit'), current_setting('TimeZone'), upper('ä')`,
  );
  await server.stop();
  await rm(path.join(initialised, "postgres.log"));
});

afterAll(() => removeDirectory(initialised));

beforeEach(async () => {
  dataDir = await emptyDirectory();
});

afterEach(async () => {
  for (const task of cleanUp.splice(0).reverse()) await task();
});

const makeDirectory = async () => realpath(await mkdtemp(path.join(os.tmpdir(), "phoneproof-embedded-")));
const removeDirectory = (directory: string) => rm(directory, { recursive: true, force: true, maxRetries: 5 });

const initialise = (directory = dataDir) => promisify(execFile)("cp", ["-a", `${initialised}/.`, directory]);

async function emptyDirectory(): Promise<string> {
  const directory = await makeDirectory();
  cleanUp.push(() => removeDirectory(directory));
  return directory;
}

async function start(options: Partial<EmbeddedPostgresOptions> = {}): Promise<EmbeddedPostgres> {
  const server = await startEmbeddedPostgres({ dataDir, ...options });
  cleanUp.push(server.stop);
  return server;
}

async function query(server: Pick<EmbeddedPostgres, "connection">, text: string): Promise<unknown[]> {
  const client = new pg.Client(server.connection);
  await client.connect();
  try {
    return (await client.query({ text, rowMode: "array" })).rows.flat();
  } finally {
    await client.end();
  }
}

const pidFile = (directory = dataDir) => path.join(directory, "postgres", "postmaster.pid");

async function serverPid(directory = dataDir): Promise<number> {
  return Number.parseInt(await readFile(pidFile(directory), "utf8"), 10);
}

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

/** Arguments of Node for a process that starts Postgres on `directory`, and says why if that fails. */
function startOf(directory: string): string[] {
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
async function startService(): Promise<{ child: ChildProcess; lines: AsyncIterator<string> }> {
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

test("a first start creates a durable PostgreSQL 18 with the service's database, in UTF-8 and UTC", () => {
  expect(afterFirstStart).toEqual([18, "phoneproof", "on", "on", "UTC", "Ä"]);
});

/** A user without an account, as in a container. */
const otherUid = 20_817;
const asOther = { uid: otherUid, gid: otherUid };
const canRunAsOther =
  process.geteuid?.() === 0 &&
  spawnSync("test", ["-x", os.tmpdir(), "-a", "-r", import.meta.filename], asOther).status === 0;
if (!canRunAsOther) noteAbsence("root, or a folder open to all for this clone", "root on a user's data");

/** Environment variables for other Postgres programs. */
const foreign = {
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
async function startObstructed() {
  const output = existsSync("/dev/full") ? { file: "/dev/full" } : undefined;
  const service = await startProcess({ DATA_DIR: dataDir, ...foreign }, output);
  expect((await fetch(`${service.httpUrl}/no-such-route`)).status).toBe(404);
  return service;
}

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

test("other accounts cannot change a data directory that is created, whatever the umask", async () => {
  const created = path.join(await emptyDirectory(), "above/data");
  const program = `
    process.umask(0);
    const { makeDirectory } = await import(${JSON.stringify(import.meta.resolve("../../src/storage/embedded/data-directory.ts"))});
    await makeDirectory(process.argv[1]);
  `;
  await promisify(execFile)(process.execPath, ["--input-type=module", "-e", program, created]);
  for (const directory of [created, path.dirname(created)])
    expect((await stat(directory)).mode & 0o777).toBe(0o755);
});

if (canRunAsOther)
  describe("root, on the data directory of another user", () => {
    beforeEach(() => initialise());

    const own = () => promisify(execFile)("chown", ["-R", `${otherUid}:${otherUid}`, dataDir]);

    test("runs Postgres as that user, and leaves no file that keeps the user from starting again", async () => {
      await writeFile(path.join(dataDir, "postgres.log"), "x".repeat(10 * 1024 * 1024 + 1));
      await own();
      await rm(path.join(dataDir, "postgres.lock"));
      const service = await startObstructed();
      expect((await stat(`/proc/${await serverPid()}`)).uid).toBe(otherUid);
      service.child.kill("SIGTERM");
      expect(await service.ended()).toBe(0);
      const names = await readdir(dataDir);
      expect(names.sort()).toEqual([
        "admin-token",
        "postgres",
        "postgres.lock",
        "postgres.log",
        "postgres.log.1",
      ]);
      const found = await promisify(execFile)("find", [dataDir, "!", "-uid", String(otherUid)]);
      expect(found.stdout).toBe("");
    });

    test("gives that user no file of root's that was there before", async () => {
      const elsewhere = await emptyDirectory();
      const secret = path.join(elsewhere, "secret");
      const text = "s".repeat(10 * 1024 * 1024 + 1);
      await writeFile(secret, text, { mode: 0o600 });
      await own();
      const log = path.join(dataDir, "postgres.log");
      await rm(log, { force: true });
      await symlink(secret, log);
      await (await start()).stop();
      expect((await stat(`${log}.1`)).uid).toBe(0);
      await rm(log);
      await writeFile(log, "secret", { mode: 0o600 });
      const lock = path.join(dataDir, "postgres.lock");
      await rm(lock);
      const database = new DatabaseSync(lock);
      database.exec("CREATE TABLE secret (t)");
      database.close();
      await (await start()).stop();
      expect((await stat(lock)).uid).toBe(0);
      expect((await stat(log)).uid).toBe(otherUid);
      expect(await readFile(`${log}.1`, "utf8")).toBe("secret");
      expect((await stat(`${log}.1`)).uid).toBe(0);
      // Empty as a lock is, but a file of root's from elsewhere.
      const empty = path.join(elsewhere, "empty");
      await writeFile(empty, "");
      await rm(lock);
      await link(empty, lock);
      await (await start()).stop();
      expect((await stat(empty)).uid).toBe(0);
    });

    test("does not run a database of somebody else that it links to", async () => {
      const linking = await emptyDirectory();
      await symlink(path.join(dataDir, "postgres"), path.join(linking, "postgres"));
      await promisify(execFile)("chown", ["-hR", `${otherUid}:${otherUid}`, linking]);
      await expect(start({ dataDir: linking })).rejects.toThrow(
        `${linking}/postgres is a link of the user with id ${otherUid} to what belongs to another`,
      );
    });

    const withoutChown = ["--bounding-set=-chown", "--inh-caps=-chown"];
    const canGiveUp = spawnSync("setpriv", [...withoutChown, "true"]).status === 0;
    if (!canGiveUp)
      noteAbsence("setpriv, or the right to use it", "root without the capability to give files away");
    if (canGiveUp)
      test("starts without the capability to give files to that user", async () => {
        await chown(dataDir, otherUid, otherUid);
        await chmod(dataDir, 0o777);
        const module = path.join(root, "src/storage/embedded/data-directory.ts");
        const script = `(await import(${JSON.stringify(module)})).lockDataDir(${JSON.stringify(dataDir)})`;
        await rm(path.join(dataDir, "postgres.lock"));
        const { stderr, status } = spawnSync(
          "setpriv",
          [...withoutChown, process.execPath, "--input-type=module", "-e", script],
          {
            encoding: "utf8",
          },
        );
        expect([stderr, status]).toEqual(["", 0]);
      });

    test("changes nothing and says what to do if that user cannot reach it", async () => {
      const closed = path.join(dataDir, "closed");
      const cluster = path.join(closed, "data/postgres");
      await mkdir(path.dirname(cluster), { recursive: true });
      await rename(path.join(dataDir, "postgres"), cluster);
      await own();
      await chown(closed, 0, 0);
      await chmod(closed, 0o700);
      await expect(start({ dataDir: path.dirname(cluster) })).rejects.toThrow(
        `${cluster} belongs to the user with id ${otherUid}, who cannot reach it`,
      );
      expect((await stat(path.join(cluster, "PG_VERSION"))).uid).toBe(otherUid);
    });

    const hasNamespaces = spawnSync("unshare", ["--user", "--map-user=1", "true"]).status === 0;
    if (!hasNamespaces) noteAbsence("user namespaces", "root on a container's database");
    if (hasNamespaces)
      test("takes over the database of a user who cannot reach it in a data directory of root's", async () => {
        await own();
        await chown(dataDir, 0, 0);
        const closed = await emptyDirectory();
        const data = path.join(closed, "data");
        await rename(dataDir, data);
        await (await start({ dataDir: data })).stop();
        expect((await stat(path.join(data, "postgres/PG_VERSION"))).uid).toBe(0);
      });

    test("starts as that user, too, beside what only root can remove of a first start that was killed", async () => {
      await own();
      const left = path.join(dataDir, "postgres.new-abc123");
      await mkdir(path.join(left, "cluster"), { recursive: true });
      const { stderr } = spawnSync(process.execPath, startOf(dataDir), { encoding: "utf8", ...asOther });
      const isLeft = existsSync(left);
      // Ends that user's server, too.
      await start();
      expect([stderr, isLeft]).toEqual(["", true]);
      expect(existsSync(left)).toBe(false);
    });

    test("that holds a database of root's: that user's start names its owner", async () => {
      await chown(dataDir, otherUid, otherUid);
      await rm(path.join(dataDir, "postgres.lock"));
      const { stderr } = spawnSync(process.execPath, startOf(dataDir), { encoding: "utf8", ...asOther });
      // Root's own, or, without user namespaces, that of the account which root's Postgres runs as.
      const { uid } = await stat(path.join(dataDir, "postgres"));
      expect(uid).not.toBe(otherUid);
      const named = `^DATA_DIR .+/postgres belongs to the user with id ${uid} \\(EACCES\\): .+\n$`;
      expect(stderr).toMatch(new RegExp(named));
    });
  });

const keepingRight = [
  "--reuid=1",
  "--clear-groups",
  "--inh-caps=+dac_override",
  "--ambient-caps=+dac_override",
];
const canKeepRight = spawnSync("setpriv", [...keepingRight, "true"]).status === 0;
if (!canKeepRight)
  noteAbsence("root, or setpriv and the right to use it", "root on files that are its alone");
if (canKeepRight)
  describe("root where new namespaces are forbidden, on files that no other user reaches,", () => {
    let closed: string;
    let data: string;

    beforeEach(async () => {
      closed = await emptyDirectory();
      data = path.join(closed, "data");
      const programs = await emptyDirectory();
      const setpriv = spawnSync("sh", ["-c", "command -v setpriv"], { encoding: "utf8" }).stdout.trim();
      await symlink(setpriv, path.join(programs, "setpriv"));
      // Without unshare, which a container lets nobody use.
      vi.stubEnv("PATH", programs);
      onTestFinished(() => {
        vi.unstubAllEnvs();
      });
    });

    const ownerOf = async (file: string) => (await stat(file)).uid;
    const answerOf = (server: EmbeddedPostgres) => query(server, "SELECT answer FROM kept");

    test("starts Postgres for the first time, and again, as a user who keeps the right to reach them", async () => {
      const first = await start({ dataDir: data });
      await query(first, "CREATE TABLE kept AS SELECT 42 AS answer");
      const server = `/proc/${await serverPid(data)}`;
      const user = await ownerOf(server);
      expect(user).not.toBe(0);
      // Every process of that user could write there.
      expect(await readFile(`${server}/maps`, "utf8")).not.toContain("/dev/shm/PostgreSQL");
      await first.stop();
      const files = await readdir(path.join(data, "postgres"), { recursive: true });
      const owners = await Promise.all(files.map((file) => ownerOf(path.join(data, "postgres", file))));
      expect(new Set(owners)).toEqual(new Set([user]));
      expect((await stat(closed)).mode & 0o777).toBe(0o700);
      const again = await start({ dataDir: data });
      expect(await ownerOf(`/proc/${await serverPid(data)}`)).toBe(user);
      expect(await answerOf(again)).toEqual([42]);
    });

    test("runs programs there that find each other", async () => {
      const { initdb } = await import(`@embedded-postgres/${process.platform}-${process.arch}`);
      const [bin, native] = [path.dirname(initdb), path.join(closed, "native")];
      await mkdir(data);
      await mkdir(native);
      await promisify(execFile)("/bin/cp", ["-a", bin, native]);
      for (const name of ["lib", "share"]) await symlink(path.join(bin, "..", name), path.join(native, name));
      const launch = await chooseLaunch(path.join(native, "bin/postgres"), data);
      const { file, args } = launch.command(path.join(native, "bin/initdb"), ["--show", "-D", data]);
      const { stderr } = await promisify(execFile)(file, args);
      expect(stderr).toContain(`share_path=${native}/share`);
    });

    const isOpen = spawnSync("test", ["-x", os.tmpdir()], asOther).status === 0;
    if (!isOpen) noteAbsence("a folder open to all", "root's database that another user can reach");
    if (isOpen)
      test("keeps the right from a user who can change the database's files", async () => {
        const program = path.join(closed, "postgres");
        await writeFile(program, "#!/bin/sh", { mode: 0o755 });
        const open = await emptyDirectory();
        for (const mode of [0o700, 0o755]) {
          await chmod(open, mode);
          await chooseLaunch(program, open);
          expect((await stat(open)).mode & 0o777).toBe(0o700);
        }
        // Of what others may need there, it locks nobody out.
        await chmod(open, 0o755);
        await writeFile(path.join(open, "other"), "");
        await expect(chooseLaunch(program, open)).rejects.toThrow(
          `no other user can reach ${open} and ${program}`,
        );
        const cluster = path.join(open, "postgres");
        await mkdir(cluster, { mode: 0o700 });
        await chown(cluster, otherUid, otherUid);
        await expect(chooseLaunch(program, open, cluster)).rejects.toThrow(
          `${cluster} belongs to the user with id ${otherUid}, who cannot reach it and ${program}`,
        );
      });

    test("takes over a database that root used in a namespace, and gives it back", async () => {
      await mkdir(data);
      await promisify(execFile)("/bin/cp", ["-a", `${initialised}/.`, data]);
      await promisify(execFile)("/bin/chown", ["-R", "0:0", data]);
      const server = await start({ dataDir: data });
      await query(server, "CREATE TABLE kept AS SELECT 42 AS answer");
      await server.stop();
      expect(await ownerOf(path.join(data, "postgres/PG_VERSION"))).not.toBe(0);
      vi.unstubAllEnvs();
      expect(await answerOf(await start({ dataDir: data }))).toEqual([42]);
    });
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

describe("after a kill -9", () => {
  test("of the server, it restarts by itself at the same address, with what was committed", async () => {
    await initialise();
    const server = await start();
    await query(server, "CREATE TABLE kept AS SELECT 42 AS answer");
    const killed = await serverPid();
    process.kill(killed, "SIGKILL");
    const answer = () => query(server, "SELECT answer FROM kept").catch(() => undefined);
    await vi.waitUntil(
      async () => (await serverPid().catch(() => killed)) !== killed && (await answer()),
      until,
    );
    expect(await answer()).toEqual([42]);
    const again = await serverPid();
    await server.stop();
    expect(isAlive(again)).toBe(false);
  });

  test("of the server, a stop of the service aborts the restart that is under way, and no other begins", async () => {
    const dead = Object.assign(new EventEmitter(), { exitCode: null, signalCode: "SIGKILL" }) as ChildProcess;
    const begun = Promise.withResolvers<AbortSignal>();
    const ended = Promise.withResolvers<ChildProcess>();
    // Stands for a server whose recovery takes longer than the service has for its end.
    const startAgain = vi.fn((signal: AbortSignal) => {
      begun.resolve(signal);
      return ended.promise;
    });
    const { stop } = supervise(dead, startAgain);
    dead.emit("exit", null, "SIGKILL");
    const signal = await begun.promise;
    const stopped = vi.fn();
    const stopping = stop().then(stopped);
    expect(signal.aborted).toBe(true);
    await setImmediate();
    // The next service may start only once the server is gone.
    expect(stopped).not.toHaveBeenCalled();
    ended.reject(signal.reason);
    await stopping;
    expect(startAgain).toHaveBeenCalledOnce();
  });

  test("of the server, a stop of the service that comes just when it has been restarted stops it again", async () => {
    const dead = Object.assign(new EventEmitter(), { exitCode: null, signalCode: "SIGKILL" }) as ChildProcess;
    const kill = vi.fn(() => restarted.emit("exit", 0, null));
    const restarted = Object.assign(new EventEmitter(), { exitCode: null, signalCode: null, kill });
    const stopped = Promise.withResolvers<void>();
    const { stop } = supervise(dead, async () => {
      // Too late for its abort to be noticed.
      stopped.resolve(stop());
      return restarted as unknown as ChildProcess;
    });
    dead.emit("exit", null, "SIGKILL");
    await stopped.promise;
    expect(kill.mock.calls).toEqual([["SIGINT"]]);
  });

  test("of the service, the next one replaces the server that was left behind, at the same address", async () => {
    await initialise();
    const { child, lines } = await startService();
    expect(await lines.next()).toMatchObject({ value: "ready" });
    const orphan = await serverPid();
    const [, , , , socketDirectory] = (await readFile(pidFile(), "utf8")).split("\n");
    child.kill("SIGKILL");
    await once(child, "exit");
    expect(isAlive(orphan)).toBe(true);
    const server = await start();
    await vi.waitUntil(() => !isAlive(orphan), until);
    expect(await query(server, "SELECT 1")).toEqual([1]);
    expect(server.connection.host).toBe(socketDirectory);
  });

  test("of the service, the next one replaces the server also if the data directory was moved meanwhile", async () => {
    await initialise();
    const { child, lines } = await startService();
    expect(await lines.next()).toMatchObject({ value: "ready" });
    const orphan = await serverPid();
    child.kill("SIGKILL");
    await once(child, "exit");
    const moved = path.join(await emptyDirectory(), "moved");
    await rename(dataDir, moved);
    dataDir = moved;
    expect(await query(await start(), "SELECT 1")).toEqual([1]);
    await vi.waitUntil(() => !isAlive(orphan), until);
  });

  test.for([
    { what: "", pidFileText: undefined },
    { what: ", and is ended although a power failure emptied the pid file", pidFileText: "" },
  ])("of both, a backend that cannot end does not block the next start$what", async ({ pidFileText }) => {
    await initialise();
    const { child, lines } = await startService();
    expect(await lines.next()).toMatchObject({ value: "ready" });
    const password = await readFile(path.join(dataDir, "postgres", "phoneproof.password"), "utf8");
    const client = new pg.Client({
      ...{ host: path.join(dataDir, "postgres.run"), port: 5432 },
      ...{ user: "phoneproof", password, database: "phoneproof" },
    });
    client.on("error", () => undefined);
    await client.connect();
    // A stopped backend cannot exit by itself when its postmaster dies.
    const { rows } = await client.query("SELECT pg_backend_pid() AS pid");
    onTestFailed(() => {
      process.kill(rows[0].pid, "SIGKILL");
    });
    process.kill(rows[0].pid, "SIGSTOP");
    process.kill(await serverPid(), "SIGKILL");
    child.kill("SIGKILL");
    await once(child, "exit");
    if (pidFileText !== undefined) await writeFile(pidFile(), pidFileText);
    const server = await start();
    // The process that inherited it takes a moment to reap it.
    await vi.waitUntil(() => !isAlive(rows[0].pid), until);
    expect(await query(server, "SELECT 1")).toEqual([1]);
  });

  test("during initialisation, the next start creates a complete database and removes what was left behind", async () => {
    // If the initialisation is over before it was observed, try again elsewhere.
    for (let caught = false; !caught; ) {
      dataDir = await emptyDirectory();
      const { child } = await startService();
      const names = await vi.waitUntil(async () => {
        const found = await readdir(dataDir);
        return found.some((name) => name === "postgres" || name.startsWith("postgres.new-"))
          ? found
          : undefined;
      }, until);
      child.kill("SIGKILL");
      await once(child, "exit");
      caught = names.some((name) => name.startsWith("postgres.new-"));
    }
    // Made here: an initdb that outlived its service could still be writing what it leaves.
    const left = path.join(dataDir, "postgres.new-abc123");
    await mkdir(path.join(left, "cluster/base"), { recursive: true });
    await writeFile(path.join(left, "cluster/PG_VERSION"), "18\n");
    const server = await start();
    expect(await query(server, "SELECT 1")).toEqual([1]);
    expect(existsSync(left)).toBe(false);
  });
});

describe("a stale pid file", () => {
  beforeEach(() => initialise());

  /** Leaves a cluster whose server was killed, with a pid file that names `pid`. */
  async function killedServerNaming(pid: number): Promise<void> {
    const { child, lines } = await startService();
    expect(await lines.next()).toMatchObject({ value: "ready" });
    const serversPid = await serverPid();
    child.kill("SIGKILL");
    await once(child, "exit");
    process.kill(serversPid, "SIGKILL");
    await vi.waitUntil(() => !isAlive(serversPid), until);
    const text = await readFile(pidFile(), "utf8");
    await writeFile(pidFile(), text.replace(/^\d+/, String(pid)));
  }

  test("whose pid now belongs to another program neither prevents the start nor harms that program", async () => {
    const stranger = spawn("sleep", ["1000"], { stdio: "ignore" });
    const ends = vi.fn();
    stranger.on("exit", ends);
    cleanUp.push(() => stranger.kill());
    await killedServerNaming(stranger.pid ?? Number.NaN);
    const server = await start();
    expect(await query(server, "SELECT 1")).toEqual([1]);
    expect(ends).not.toHaveBeenCalled();
  });

  test("whose pid now belongs to the PostgreSQL of another data directory does not harm that server", async () => {
    const otherDir = await emptyDirectory();
    await initialise(otherDir);
    const other = await start({ dataDir: otherDir });
    const otherPid = await serverPid(otherDir);
    // Its processes go on, too: the end of one would end all its connections.
    const client = new pg.Client(other.connection);
    await client.connect();
    cleanUp.push(() => client.end());
    await killedServerNaming(otherPid);
    const server = await start();
    expect(await query(server, "SELECT 1")).toEqual([1]);
    expect((await client.query("SELECT 1 AS one")).rows).toEqual([{ one: 1 }]);
    expect(await serverPid(otherDir)).toBe(otherPid);
  });

  test("whose pid is now the new server's, as in a container, does not make that one count as ready", async () => {
    const cluster = path.join(dataDir, "postgres");
    const [postgres, ready] = [path.join(dataDir, "server"), path.join(dataDir, "ready")];
    // Stands for a server that finds its own pid in the file, and replaces the file once it is ready.
    const script = `#!/bin/sh
      write() { printf '%s\\n' $$ cluster "$1" 5432 '' '' memory ready >${pidFile()}; }
      write before
      until [ -e ${ready} ]; do sleep 0.1; done
      write now
      exec sleep 1000`;
    await writeFile(postgres, script, { mode: 0o755 });
    await writeFile(pidFile(), "1\ncluster\nbefore\n5432\n\n\nmemory\nready\n");
    const log = await openLog(path.join(dataDir, "postgres.log"));
    cleanUp.push(() => log.close());
    const looks = vi.spyOn(log, "size");
    const launch = { command: (file: string, args: string[]) => ({ file, args }), owner: undefined };
    const nothing = { settings: {}, foreignPid: undefined, signal: undefined };
    const started = vi.fn();
    const starting = startServer({ postgres, launch, cluster, log, ...nothing }).then((server) => {
      cleanUp.push(() => server.kill());
      started();
    });
    await vi.waitUntil(async () => ![1, Number.NaN].includes(await serverPid()), until);
    const looked = looks.mock.calls.length;
    await vi.waitUntil(() => looks.mock.calls.length > looked + 1 || started.mock.calls.length > 0, until);
    expect(started).not.toHaveBeenCalled();
    await writeFile(ready, "");
    await starting;
  });

  test.for<[string, string]>([
    ["nothing, as after a power failure", ""],
    ["nonsense", "nonsense\n"],
    ["a process group", "-1\n"],
    ["its own process group", "0\n"],
  ])("containing %s does not prevent the start", async ([, text]) => {
    await writeFile(pidFile(), text);
    expect(await query(await start(), "SELECT 1")).toEqual([1]);
  });

  test("that is empty while its Postgres is still running: that one is stopped before another starts", async () => {
    const { child, lines } = await startService();
    expect(await lines.next()).toMatchObject({ value: "ready" });
    const serversPid = await serverPid();
    child.kill("SIGKILL");
    await once(child, "exit");
    await writeFile(pidFile(), "");
    const server = await start();
    await vi.waitUntil(() => !isAlive(serversPid), until);
    expect(await query(server, "SELECT 1")).toEqual([1]);
  });
});

describe("a second service on the same data directory", () => {
  test("is refused at once with a line that names DATA_DIR, and does not harm the first", async () => {
    await initialise();
    const { child, lines } = await startService();
    expect(await lines.next()).toMatchObject({ value: "ready" });
    const pid = await serverPid();
    await expect(start()).rejects.toThrow(`DATA_DIR ${dataDir} is in use by another running service`);
    expect(await serverPid()).toBe(pid);
    process.kill(child.pid ?? Number.NaN, "SIGINT");
    expect(await lines.next()).toMatchObject({ value: "still here" });
  });

  test("is refused, too, if its own only links to the first one's database, and does not end that one's server", async () => {
    await initialise();
    const { child, lines } = await startService();
    expect(await lines.next()).toMatchObject({ value: "ready" });
    const pid = await serverPid();
    const linking = await emptyDirectory();
    await symlink(path.join(dataDir, "postgres"), path.join(linking, "postgres"));
    const reason = "its database is in use by another running service";
    await expect(start({ dataDir: linking })).rejects.toThrow(`DATA_DIR ${linking}: ${reason}`);
    expect(await serverPid()).toBe(pid);
    process.kill(child.pid ?? Number.NaN, "SIGINT");
    expect(await lines.next()).toMatchObject({ value: "still here" });
  });
});

describe("a server that does not start", () => {
  test("gives the reason in one line, and the next start can succeed", async () => {
    await initialise();
    const failing = start({ settings: { max_connections: "many" } });
    await expect(failing).rejects.toThrow(
      `DATA_DIR ${dataDir}: PostgreSQL does not start: invalid value for parameter "max_connections": "many"`,
    );
    const server = await start();
    expect(await query(server, "SELECT 1")).toEqual([1]);
  });

  test("because it is aborted leaves nothing running, and the next start can succeed", async () => {
    await initialise();
    // If the server is ready before its process was observed, try again.
    for (let caught = false; !caught; ) {
      const end = new AbortController();
      const ended = start({ signal: end.signal }).then(
        (server) => server.stop(),
        (error: Error) => error.message,
      );
      const pid = await vi.waitUntil(() => serverPid().catch(() => undefined), until);
      end.abort();
      const errorText = await ended;
      expect(isAlive(pid)).toBe(false);
      caught = errorText !== undefined;
      if (caught) expect(errorText).toContain("aborted");
    }
    expect((await readdir(dataDir)).sort()).toEqual(["postgres", "postgres.lock", "postgres.log"]);
    expect(existsSync(pidFile())).toBe(false);
    expect(await query(await start(), "SELECT 1")).toEqual([1]);
  });

  test("because it was aborted before that initialises nothing", async () => {
    await expect(start({ signal: AbortSignal.abort() })).rejects.toThrow("aborted");
    expect(await readdir(dataDir)).toEqual(["postgres.lock"]);
  });

  test("because it is aborted during initialisation leaves nothing behind", async () => {
    // If the initialisation is over before it was observed, try again elsewhere.
    for (let caught = false; !caught; ) {
      dataDir = await emptyDirectory();
      const end = new AbortController();
      const ended = start({ signal: end.signal }).then(
        () => "started",
        (error: Error) => error.message,
      );
      const made = await vi.waitUntil(async () => {
        const names = await readdir(dataDir, { recursive: true }).catch(() => []);
        return names.find((name) => name.endsWith("postgresql.conf"));
      }, until);
      end.abort();
      const errorText = await ended;
      caught = made.startsWith("postgres.new-");
      if (caught) expect(errorText).toContain("PostgreSQL could not be initialised");
    }
    expect(await readdir(dataDir)).toEqual(["postgres.lock"]);
    (await lockDataDir(dataDir)).close();
  });

  test.for([
    {
      what: "a directory with something else",
      make: async (cluster: string) => {
        await mkdir(cluster);
        await writeFile(path.join(cluster, "notes.txt"), "mine");
      },
      reason: "it contains notes.txt, and no PG_VERSION",
    },
    { what: "a file", make: (cluster: string) => writeFile(cluster, "mine"), reason: "it is a file" },
    {
      what: "a link to an empty directory",
      make: async (cluster: string) => {
        await mkdir(path.join(dataDir, "elsewhere"));
        await symlink(path.join(dataDir, "elsewhere"), cluster);
      },
      reason: "it is a link to none",
    },
  ])("because its database is $what says so before it initialises another", async ({ make, reason }) => {
    await make(path.join(dataDir, "postgres"));
    const before = await readdir(dataDir, { recursive: true });
    // initdb would not begin, for which nothing says more than that it was aborted.
    const starting = start({ signal: AbortSignal.abort() });
    await expect(starting).rejects.toThrow(`its "postgres" is not a database cluster: ${reason}`);
    expect((await readdir(dataDir, { recursive: true })).sort()).toEqual([...before, "postgres.lock"].sort());
  });

  test("because its database is missing, but not its admin token, says so, and starts once it is restored", async () => {
    await initialise();
    const service = await startProcess({ DATA_DIR: dataDir });
    service.child.kill("SIGTERM");
    expect(await service.ended()).toBe(0);
    const [cluster, backup] = [path.join(dataDir, "postgres"), path.join(dataDir, "backup")];
    await rename(cluster, backup);
    for (const make of [() => undefined, () => mkdir(cluster)]) {
      await make();
      await expect(start()).rejects.toThrow(
        `DATA_DIR ${dataDir}: there is an "admin-token" of an earlier start, but no database in "postgres"`,
      );
    }
    await rename(backup, cluster);
    expect(await query(await start(), "SELECT count(*)::int FROM api_key")).toEqual([2]);
  });

  test("because its database is of another major version says of which", async () => {
    await initialise();
    await writeFile(path.join(dataDir, "postgres/PG_VERSION"), "17\n");
    await expect(start()).rejects.toThrow(
      `DATA_DIR ${dataDir}: its database is of PostgreSQL 17, and this release runs 18`,
    );
    await writeFile(path.join(dataDir, "postgres/PG_VERSION"), "18\n");
    expect(await query(await start(), "SELECT 1")).toEqual([1]);
  });

  // Files cannot grow beyond a few kilobytes, which simulates a full disk.
  const limited = ["-c", 'ulimit -f 64 && exec "$0" "$@"', process.execPath];

  test("for lack of space says whether it was to be initialised", async () => {
    const child = spawn("sh", [...limited, path.join(root, "bin/start.mjs")], {
      env: plainEnvironment({ DATA_DIR: dataDir, PORT: "0", GRPC_PORT: "0", OPS_PORT: "0" }),
    });
    const [printed, [code]] = await Promise.all([text(child.stderr), once(child, "close")]);
    const reason = `DATA_DIR ${dataDir}: PostgreSQL could not be initialised: .*File too large.*`;
    expect(printed).toMatch(new RegExp(`^phoneproof cannot start: ${reason}\n$`));
    expect(code).toBe(1);
  });

  test("for lack of space says whether it was to be started", async () => {
    await initialise();
    const child = spawn("sh", [...limited, ...startOf(dataDir)]);
    const [printed, [code]] = await Promise.all([text(child.stderr), once(child, "close")]);
    const reason = `DATA_DIR ${dataDir}: PostgreSQL does not start: .*File too large.*`;
    expect(printed).toMatch(new RegExp(`^${reason}\n$`));
    expect(code).toBe(1);
  });

  test.for([
    { what: "is a file", below: "file", reason: "cannot be used: {}/file is not a directory" },
    { what: "is below a file", below: "file/data/", reason: "cannot be used: {}/file is not a directory" },
    {
      what: "is a link to nothing",
      below: "link",
      reason: "cannot be used: {}/link is a symbolic link that leads to no directory",
    },
    { what: "has a line break", below: "a\nb", reason: "cannot be used: its path contains a line break" },
    {
      what: "has too long a path",
      below: `${"d".repeat(250)}/${"d".repeat(250)}`,
      reason: "cannot be locked: its path is too long",
    },
  ])("because DATA_DIR $what says so", async ({ below, reason }) => {
    await writeFile(path.join(dataDir, "file"), "");
    await symlink("nowhere", path.join(dataDir, "link"));
    const directory = path.join(dataDir, below);
    await expect(start({ dataDir: directory })).rejects.toThrow(
      `DATA_DIR ${directory} ${reason.replace("{}", dataDir)}`,
    );
  });

  test.for(['"', "$", "`"])("because initdb does not bear %s in its own path says so", async (character) => {
    const { initdb } = await import(`@embedded-postgres/${process.platform}-${process.arch}`);
    const folder = path.join(dataDir, `a${character}b`);
    await mkdir(path.join(folder, "bin"), { recursive: true });
    await copyFile(initdb, path.join(folder, "bin/initdb"));
    await symlink(path.join(initdb, "../../lib"), path.join(folder, "lib"));
    await symlink(path.join(initdb, "../postgres"), path.join(folder, "bin/postgres"));
    const cluster = path.join(dataDir, "postgres");
    const launch = await chooseLaunch(initdb, dataDir);
    const initialised = initialiseCluster({
      ...{ initdb: path.join(folder, "bin/initdb"), launch, dataDir, cluster },
      ...{ superuser: "phoneproof", signal: undefined },
    });
    await expect(initialised).rejects.toThrow(`folder with ${character} in its path`);
  });

  test("because it is silent for half a minute says that, not how it was ended, and leaves nothing running", async () => {
    const [postgres, file] = [path.join(dataDir, "silent"), path.join(dataDir, "pid")];
    await writeFile(postgres, `#!/bin/sh\necho $$ >${file}\nexec sleep 1000`, { mode: 0o755 });
    const log = await openLog(path.join(dataDir, "postgres.log"));
    vi.useFakeTimers({ toFake: ["performance"] });
    onTestFinished(async () => {
      vi.useRealTimers();
      await log.close();
    });
    const launch = { command: (file: string, args: string[]) => ({ file, args }), owner: undefined };
    const nothing = { settings: {}, foreignPid: undefined, signal: undefined };
    const started = startServer({ postgres, launch, cluster: dataDir, log, ...nothing });
    const failure = expect(started).rejects.toThrow("PostgreSQL does not start: it is not ready after 30 s");
    const pid = await vi.waitUntil(async () => Number(await readFile(file, "utf8").catch(() => 0)), until);
    vi.advanceTimersByTime(30_001);
    await failure;
    expect(isAlive(pid)).toBe(false);
  });

  test.for<[string, (file: string) => Promise<void>]>([
    ["is missing", (file) => rm(file)],
    ["is empty", (file) => writeFile(file, " \n")],
    ["does not have the database's password", (file) => truncate(file, 12)],
  ])("because the file of its password %s says so, and starts once it is restored", async ([
    reason,
    lose,
  ]) => {
    await initialise();
    const file = path.join(dataDir, "postgres/phoneproof.password");
    await copyFile(file, `${file}.backup`);
    await lose(file);
    await expect(start()).rejects.toThrow(
      `DATA_DIR ${dataDir}: ${file} ${reason}: restore this file from a backup`,
    );
    await rename(`${file}.backup`, file);
    expect(await query(await start(), "SELECT 1")).toEqual([1]);
  });

  test("because a file of Postgres' own cannot be written says which", async () => {
    await initialise();
    const options = path.join(dataDir, "postgres/postmaster.opts");
    await rm(options, { force: true });
    await mkdir(options);
    await expect(start()).rejects.toThrow(
      `DATA_DIR ${dataDir}: PostgreSQL does not start: could not create file "postmaster.opts": Is a directory`,
    );
    await rmdir(options);
    expect(await query(await start(), "SELECT 1")).toEqual([1]);
  });

  test.for([
    { of: "", folder: "", name: "" },
    { of: ", that of its database,", folder: "postgres", name: ": its database" },
  ])("because its lock$of is a link says so, and changes and creates nothing there", async ({
    folder,
    name,
  }) => {
    await initialise();
    const lock = path.join(dataDir, folder, "postgres.lock");
    const other = path.join(await emptyDirectory(), "other");
    const refused = async () => {
      await rm(lock, { force: true });
      await symlink(other, lock);
      await expect(start()).rejects.toThrow(`DATA_DIR ${dataDir}${name} cannot be locked: ${lock} is a link`);
    };
    await refused();
    expect(existsSync(other)).toBe(false);
    await writeFile(other, "");
    await chmod(other, 0o644);
    await refused();
    expect((await stat(other)).mode & 0o777).toBe(0o644);
  });

  test.for<[string, (lock: string) => Promise<unknown>, RegExp]>([
    ["a directory", (lock) => mkdir(lock), /EISDIR: .+ open '.+postgres\.lock'$/],
    ["another file", (lock) => writeFile(lock, "mine"), /\/postgres\.lock: file is not a database$/],
  ])("because its lock is %s says so", async ([, make, reason]) => {
    await make(path.join(dataDir, "postgres.lock"));
    const refusal = start().catch((error: Error) => error.message);
    expect(await refusal).toMatch(new RegExp(`^DATA_DIR ${dataDir} cannot be locked: .*${reason.source}`));
  });

  if (canRunAsOther)
    test("because nothing can be created in DATA_DIR says so, although there is a lock", async () => {
      await writeFile(path.join(dataDir, "postgres.lock"), "");
      await chown(path.join(dataDir, "postgres.lock"), otherUid, otherUid);
      await chmod(dataDir, 0o755);
      const { stderr } = spawnSync(process.execPath, startOf(dataDir), { encoding: "utf8", ...asOther });
      expect(stderr).toBe(
        `DATA_DIR ${dataDir} cannot be locked: EACCES: permission denied, access '${dataDir}'\n`,
      );
    });

  // In a process of its own: if Node retries for ever, only a kill ends it.
  if (process.platform === "linux")
    test("because nothing can be created below DATA_DIR says so", async () => {
      const child = spawn(process.execPath, startOf("/proc/phoneproof/data"), {
        timeout: 45_000,
        killSignal: "SIGKILL",
      });
      const [printed, end] = await Promise.all([text(child.stderr), once(child, "close")]);
      expect(end).toEqual([1, null]);
      expect(printed).toMatch(/^DATA_DIR \/proc\/phoneproof\/data cannot be used: .+\n$/);
    });
});

describe("the server's log", () => {
  test.for([
    {
      of: "an initialisation",
      log: `running bootstrap script ... 2026-11-24 21:09:02.153 UTC [8078] FATAL:  could not extend file "base/1/2691": No space left on device
2026-11-24 21:09:02.153 UTC [8078] HINT:  Check free disk space.
2026-11-24 21:09:02.153 UTC [8078] PANIC:  cannot abort transaction 1, it was already committed
Aborted
`,
      reason: 'could not extend file "base/1/2691": No space left on device (Check free disk space.)',
    },
    {
      of: "a start with room for half a page",
      log: `2026-11-25 03:35:02.153 UTC [8078] ERROR:  could not extend file "base/16384/16549": wrote only 4096 of 8192 bytes at block 0
2026-11-25 03:35:02.153 UTC [8078] HINT:  Check free disk space.
2026-11-25 03:35:02.160 UTC [8070] LOG:  database system is shut down
`,
      reason:
        'could not extend file "base/16384/16549": wrote only 4096 of 8192 bytes at block 0 (Check free disk space.)',
    },
    { of: "a program without an error message", log: "Aborted\nKilled\n", reason: "Killed" },
    {
      of: "a recovery",
      log: `2026-11-25 03:08:04.893 UTC [2898] LOG:  redo done at 0/19BCD70 system usage: CPU: user: 0.01 s, system: 0.00 s, elapsed: 0.03 s
2026-11-25 03:08:04.896 UTC [2896] ERROR:  could not write blocks 24..24 in file "base/16384/1249": No space left on device
2026-11-25 03:08:04.896 UTC [2898] FATAL:  checkpoint request failed
2026-11-25 03:08:04.898 UTC [2892] LOG:  startup process (PID 2898) exited with exit code 1
2026-11-25 03:08:04.905 UTC [2892] LOG:  database system is shut down
`,
      reason: 'could not write blocks 24..24 in file "base/16384/1249": No space left on device',
    },
  ])("of $of that failed yields the reason, and not its consequences", ({ log, reason }) => {
    expect(reasonIn(log)).toBe(reason);
  });

  test("is rotated when it exceeds 10 MB, keeping one old file", async () => {
    await initialise();
    const log = path.join(dataDir, "postgres.log");
    await writeFile(log, "x".repeat(10 * 1024 * 1024 + 1));
    await writeFile(`${log}.1`, "of the time before");
    await start();
    expect((await stat(log)).size).toBeLessThan(10_000);
    expect((await stat(`${log}.1`)).size).toBe(10 * 1024 * 1024 + 1);
  });

  test("does not keep the server from starting if it cannot be rotated, as on a full disk", async () => {
    await initialise();
    const log = path.join(dataDir, "postgres.log");
    await writeFile(log, "x".repeat(10 * 1024 * 1024 + 1));
    // Nor can it be copied to a directory.
    await mkdir(`${log}.1`);
    await start();
    expect((await stat(log)).size).toBeGreaterThan(10 * 1024 * 1024 + 1);
  });

  test("is rotated while the server runs, too, if that is possible, and no more once it is closed", async () => {
    vi.useFakeTimers({ toFake: ["setInterval", "clearInterval"] });
    onTestFinished(() => {
      vi.useRealTimers();
    });
    const files = ["rotated.log", "kept.log"].map((name) => path.join(dataDir, name));
    const logs = [];
    for (const file of files) {
      logs.push(await openLog(file));
      await writeFile(file, "x".repeat(10 * 1024 * 1024 + 1));
    }
    await mkdir(`${files[1]}.1`);
    vi.advanceTimersByTime(60_000);
    for (const log of logs) await log.close();
    expect(vi.getTimerCount()).toBe(0);
    const sizes = [];
    for (const file of files) sizes.push((await stat(file)).size);
    expect(sizes).toEqual([0, 10 * 1024 * 1024 + 1]);
  });
});
