/** Whose the files of the embedded Postgres are, and as which user it runs. */

import { execFile, spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import {
  chmod,
  chown,
  link,
  mkdir,
  readdir,
  readFile,
  rename,
  rm,
  stat,
  symlink,
  writeFile,
} from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { DatabaseSync } from "node:sqlite";
import { promisify } from "node:util";
import { beforeEach, describe, expect, onTestFinished, test, vi } from "vitest";
import type { EmbeddedPostgres } from "../../src/storage/embedded/embedded-postgres.ts";
import { chooseLaunch } from "../../src/storage/embedded/postgres-launch.ts";
import { noteAbsence } from "../harness/absent-tools.ts";
import {
  asOther,
  canRunAsOther,
  dataDir,
  emptyDirectory,
  initialise,
  initialised,
  otherUid,
  prepareDataDirectories,
  query,
  root,
  serverPid,
  start,
  startObstructed,
  startOf,
} from "./embedded-server.ts";

prepareDataDirectories();

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

if (!canRunAsOther) noteAbsence("root, or a folder open to all for this clone", "root on a user's data");

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
