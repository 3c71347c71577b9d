/** What is left of an embedded Postgres, or its service, that was killed, and what is still running. */

import { type ChildProcess, spawn } from "node:child_process";
import { EventEmitter, once } from "node:events";
import { existsSync } from "node:fs";
import { mkdir, readdir, readFile, rename, symlink, writeFile } from "node:fs/promises";
import path from "node:path";
import { setImmediate } from "node:timers/promises";
import pg from "pg";
import { beforeEach, describe, expect, onTestFailed, test, vi } from "vitest";
import { openLog } from "../../src/storage/embedded/postgres-log.ts";
import { startServer, supervise } from "../../src/storage/embedded/postgres-process.ts";
import {
  cleanUp,
  dataDir,
  emptyDirectory,
  initialise,
  isAlive,
  pidFile,
  prepareDataDirectories,
  query,
  serverPid,
  setDataDir,
  start,
  startService,
  until,
} from "./embedded-server.ts";

prepareDataDirectories();

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
    setDataDir(moved);
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
      setDataDir(await emptyDirectory());
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
