/** Creates the files of an embedded Postgres: all of them or none, wherever it is interrupted. */
import { spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import {
  access,
  chown,
  lstat,
  mkdtemp,
  readdir,
  readFile,
  rename,
  rm,
  stat,
  writeFile,
} from "node:fs/promises";
import path from "node:path";
import { syncDirectory } from "./data-directory.ts";
import { chownTree, type Launch } from "./postgres-launch.ts";
import { reasonIn } from "./postgres-log.ts";
import { serverEnvironment } from "./postgres-process.ts";

/** The major version of the server that npm installs. Its log, without details, does not say which one a cluster has. */
const serverVersion = "18";

/** Where a cluster keeps its superuser's password. */
const passwordFile = (cluster: string) => path.join(cluster, "phoneproof.password");

export async function readPassword(cluster: string): Promise<string> {
  const text = await readFile(passwordFile(cluster), "utf8").catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") throw unusablePassword(cluster, "is missing");
    throw error;
  });
  const password = text.trim();
  if (password === "") throw unusablePassword(cluster, "is empty");
  return password;
}

/** Nothing else knows it. */
export const unusablePassword = (cluster: string, reason: string): Error =>
  new Error(`${passwordFile(cluster)} ${reason}: restore this file from a backup`);

/**
 * Creates the cluster in a directory beside its final one and renames that, so that the final path holds a complete cluster or
 * none at all, whenever the process is killed.
 */
export async function initialiseCluster(options: {
  /** The path of the program. */
  readonly initdb: string;
  readonly launch: Launch;
  readonly dataDir: string;
  /** The cluster's final path. */
  readonly cluster: string;
  readonly superuser: string;
  /** Aborts, and leaves nothing behind. */
  readonly signal: AbortSignal | undefined;
}): Promise<void> {
  const { initdb, launch, dataDir, cluster, superuser, signal } = options;
  const names = await readdir(dataDir);
  for (const name of names) {
    // An initdb whose service was killed may still be writing: what cannot be removed now, the next start removes.
    if (name.startsWith("postgres.new-")) {
      await rm(path.join(dataDir, name), { recursive: true, force: true, maxRetries: 3 }).catch(
        () => undefined,
      );
    }
  }
  if (await exists(path.join(cluster, "PG_VERSION"))) {
    const version = (await readFile(path.join(cluster, "PG_VERSION"), "utf8")).trim();
    if (/^\d+$/.test(version) && version !== serverVersion) {
      throw new Error(
        `its database is of PostgreSQL ${version}, and this release runs ${serverVersion}: ` +
          "start the release that used it, or move the database with a dump",
      );
    }
    return;
  }
  await requireNothing(cluster);
  // Made once there is a database: that was lost, and to a new one all keys and tokens of the old would be invalid.
  if (names.includes("admin-token")) {
    throw new Error(
      'there is an "admin-token" of an earlier start, but no database in "postgres": restore that, ' +
        "or remove the token to begin with a new database",
    );
  }

  const attempt = await mkdtemp(path.join(dataDir, "postgres.new-"));
  try {
    const password = randomBytes(24).toString("base64url");
    await writeFile(path.join(attempt, "password"), password, { mode: 0o600 });
    await chownTree(launch.owner, attempt);
    const made = path.join(attempt, "cluster");
    const args = [
      `--pgdata=${made}`,
      `--username=${superuser}`,
      `--pwfile=${path.join(attempt, "password")}`,
      "--auth=scram-sha-256",
      "--encoding=UTF8",
      "--locale=C",
      "--locale-provider=builtin",
      "--builtin-locale=C.UTF-8",
      ...(process.platform === "linux" ? ["--sync-method=syncfs"] : []),
    ];
    await runInitdb(initdb, launch, args, signal);
    const kept = passwordFile(made);
    await writeFile(kept, password, { mode: 0o600, flush: true });
    if (launch.owner !== undefined) await chown(kept, launch.owner.uid, launch.owner.gid);
    await rename(made, cluster).catch((error: NodeJS.ErrnoException) =>
      Promise.reject(notACluster(error.code === "EBUSY" ? mounted : error.message)),
    );
    await syncDirectory(dataDir);
  } finally {
    await rm(attempt, { recursive: true, force: true });
  }
}

/** Initialising takes seconds, and its result can replace only an empty directory. */
async function requireNothing(cluster: string): Promise<void> {
  const found = await lstat(cluster).catch(() => undefined);
  if (found === undefined) return;
  if (!found.isDirectory()) throw notACluster(`it is a ${found.isSymbolicLink() ? "link to none" : "file"}`);
  const [name] = await readdir(cluster);
  if (name !== undefined) throw notACluster(`it contains ${name}, and no PG_VERSION`);
}

const mounted = "a volume is mounted there, so none can be put in its place: mount it as DATA_DIR itself";

const notACluster = (reason: string) => new Error(`its "postgres" is not a database cluster: ${reason}`);

async function runInitdb(
  initdb: string,
  launch: Launch,
  args: string[],
  signal: AbortSignal | undefined,
): Promise<void> {
  signal?.throwIfAborted();
  // It runs the `postgres` beside it through a shell, with its path in double quotes.
  const [special] = /["$`]/.exec(initdb) ?? [];
  if (special !== undefined) {
    throw new Error(
      `PostgreSQL could not be initialised: it cannot be run from a folder with ${special} in its path, ${path.dirname(initdb)}: ` +
        "move phoneproof to another folder, or set DATABASE_URL",
    );
  }
  const { file, args: all, uid, gid } = launch.command(initdb, args);
  const child = spawn(file, all, {
    cwd: "/",
    env: serverEnvironment(),
    stdio: ["ignore", "ignore", "pipe"],
    ...(uid === undefined ? {} : { uid, gid }),
  });
  // Its exit is awaited nevertheless: files that it is still writing could not be removed.
  signal?.addEventListener("abort", () => child.kill(), { once: true });
  let output = "";
  child.stderr.setEncoding("utf8").on("data", (text: string) => {
    output = (output + text).slice(-10_000);
  });
  const code = await new Promise<string>((resolve) => {
    child.once("error", (error) => resolve(error.message));
    child.once("close", (status, signal) => resolve(status === 0 ? "" : `ended with ${signal ?? status}`));
  });
  if (code !== "") throw new Error(`PostgreSQL could not be initialised: ${reasonIn(output) || code}`);
}

/** Whether the file exists; rejects if this user has no permission to see that. */
async function exists(file: string): Promise<boolean> {
  return access(file).then(
    () => true,
    async (error: NodeJS.ErrnoException) => {
      if (error.code === "ENOENT" || error.code === "ENOTDIR") return false;
      const directory = path.dirname(file);
      const { uid } = await stat(directory);
      throw new Error(
        `${directory} belongs to the user with id ${uid} (${error.code}): start the service as that user, ` +
          `or give it to this one (chown -R ${process.geteuid?.()} ${directory}, as root)`,
      );
    },
  );
}
