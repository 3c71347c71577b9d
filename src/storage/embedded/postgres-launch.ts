/**
 * Chooses the user that the embedded Postgres runs as. Postgres refuses an effective uid of 0, and the service is often started
 * by root: in a container, on a fresh machine.
 */
import { execFile } from "node:child_process";
import { chmod, chown, lchown, lstat, readdir, readFile, stat } from "node:fs/promises";
import path from "node:path";
import { promisify } from "node:util";

const run = promisify(execFile);

export interface Launch {
  /** The command that replaces itself by `binary`, with the same process id. */
  command(binary: string, args: string[]): { file: string; args: string[]; uid?: number; gid?: number };
  /** The owner that the cluster's files must have; undefined if Postgres runs as the user that creates them. */
  readonly owner: { uid: number; gid: number } | undefined;
  /** Server settings by name. */
  readonly settings?: Record<string, string>;
}

const asSameUser: Launch = { command: (file, args) => ({ file, args }), owner: undefined };

/**
 * In a user namespace our own files stay reachable (root's clone under /root, mode 700) while the process shows the uid of
 * another account. The files keep belonging to who starts the service, so this is preferred to running as another user.
 * `unshare` replaces itself by the program, so the pid and its signals are Postgres's.
 */
function inNamespace(uid: number, owner: Launch["owner"]): Launch {
  const map = ["--user", `--map-user=${uid}`, `--map-group=${uid}`];
  return { command: (binary, args) => ({ file: "unshare", args: [...map, "--", binary, ...args] }), owner };
}

function asUser({ uid, gid }: { uid: number; gid: number }): Launch {
  return { command: (file, args) => ({ file, args, uid, gid }), owner: { uid, gid } };
}

/**
 * Another user, who keeps root's right to reach any file: where new namespaces are forbidden and the files are root's alone (a
 * clone under /root in a container). `setpriv` replaces itself by the program, too. `no_setuid_fixup` lets access(2), by which
 * Postgres judges its own program, count that right.
 */
function asUserOfAnyFile(user: { uid: number; gid: number }): Launch {
  const as = [`--reuid=${user.uid}`, `--regid=${user.gid}`, "--clear-groups"];
  const right = ["--securebits=+no_setuid_fixup", "--inh-caps=+dac_override", "--ambient-caps=+dac_override"];
  return {
    command: (binary, args) => ({ file: "setpriv", args: [...as, ...right, "--", binary, ...args] }),
    owner: user,
    // Not in /dev/shm, where any process of that user could change what the server believes of its own.
    settings: { dynamic_shared_memory_type: "mmap" },
  };
}

/**
 * Returns the first way of running Postgres that reaches both its program and `dataDir`. Each is tried, not guessed. As root,
 * an existing `cluster` of another user is run as that user, who could otherwise not start it again, if that user can reach it.
 */
export async function chooseLaunch(postgres: string, dataDir: string, cluster?: string): Promise<Launch> {
  const accounts = await readAccounts();
  const uid = process.geteuid?.();
  const unprivileged = accounts.find((account) => account.uid !== 0)?.uid ?? 65_534;
  if (uid !== 0) {
    // initdb needs an account for its uid, which the arbitrary uid of a container (`docker run --user`) lacks.
    if (accounts.some((account) => account.uid === uid) || process.platform !== "linux") return asSameUser;
    return (await firstReaching([inNamespace(unprivileged, undefined)], postgres, dataDir)) ?? asSameUser;
  }
  const namespace = inNamespace(unprivileged, { uid: 0, gid: 0 });
  const owner = cluster === undefined ? undefined : await stat(cluster).catch(() => undefined);
  if (cluster !== undefined && owner !== undefined) await refuseForeignLink(cluster, owner.uid);
  if (cluster !== undefined && owner !== undefined && owner.uid !== 0) {
    // In a container there may be no account of that id.
    const account = accounts.find((known) => known.uid === owner.uid) ?? owner;
    const launch =
      (await asReachingUser(account, postgres, dataDir, cluster)) ??
      // If the data directory is root's, that user never started the service here: a container has left the database, for example.
      ((await stat(dataDir)).uid === 0
        ? ((await firstReaching([namespace], postgres, dataDir)) ??
          (await asShutOutUser(account, postgres, dataDir, cluster)))
        : undefined);
    if (launch !== undefined) return launch;
    throw new Error(
      `${cluster} belongs to the user with id ${owner.uid}, who cannot reach it and ${postgres}: ` +
        `start the service as that user, or give it to root (chown -R 0:0 ${cluster})`,
    );
  }
  if (await reaches(namespace, postgres, dataDir)) return namespace;
  // Containers forbid new namespaces, but usually let another user reach the files.
  const others = await otherUsers(accounts, postgres, dataDir);
  for (const account of others) {
    const launch = await asReachingUser(account, postgres, dataDir);
    if (launch !== undefined) return launch;
  }
  await closeOwn(dataDir);
  for (const account of others) {
    const launch = await asShutOutUser(account, postgres, dataDir);
    if (launch !== undefined) return launch;
  }
  throw new Error(
    `PostgreSQL does not run as root, and no other user can reach ${dataDir} and ${postgres}: ` +
      "start the service as an ordinary user, or set DATABASE_URL",
  );
}

/** Whoever owns the data directory has its admin token, and could link the database of another. */
async function refuseForeignLink(cluster: string, owner: number): Promise<void> {
  const { uid: linker } = await lstat(cluster);
  if (linker === 0 || linker === owner) return;
  throw new Error(
    `${cluster} is a link of the user with id ${linker} to what belongs to another: ` +
      `if that is intended, give the link to root (chown -h 0 ${cluster})`,
  );
}

/** Undefined if that user cannot run `postgres` and enter `directory`, which is `dataDir` or within it. */
async function asReachingUser(
  user: { uid: number; gid: number },
  postgres: string,
  dataDir: string,
  directory = dataDir,
): Promise<Launch | undefined> {
  const launch = asUser(user);
  if (await reaches(launch, postgres, directory)) return launch;
  if (!(await reaches(launch, postgres, "/"))) return undefined;
  // Search permission only: to open a file, a user still needs its name and its own permission.
  await chmod(dataDir, (await stat(dataDir)).mode | 0o011);
  return (await reaches(launch, postgres, directory)) ? launch : undefined;
}

/**
 * Undefined, too, if the user can enter `directory` without root's right: whoever can change the files of a cluster decides what
 * its server runs, and would have that right.
 */
async function asShutOutUser(
  user: { uid: number; gid: number },
  postgres: string,
  dataDir: string,
  directory = dataDir,
): Promise<Launch | undefined> {
  const launch = asUserOfAnyFile(user);
  // The shell's own command that does nothing.
  const enters = await reaches(asUser(user), ":", directory);
  return !enters && (await reaches(launch, postgres, dataDir)) ? launch : undefined;
}

/** Keeps others out of a data directory of root's, unless it holds more than this service's files. */
async function closeOwn(dataDir: string): Promise<void> {
  const { uid, mode } = await stat(dataDir);
  const names = await readdir(dataDir);
  const isOwn = uid === 0 && names.every((name) => /^(?:postgres|admin-token)/.test(name));
  if (isOwn) await chmod(dataDir, mode & ~0o077);
}

async function firstReaching(
  launches: readonly Launch[],
  postgres: string,
  dataDir: string,
): Promise<Launch | undefined> {
  for (const launch of launches) if (await reaches(launch, postgres, dataDir)) return launch;
  return undefined;
}

async function reaches(launch: Launch, postgres: string, dataDir: string): Promise<boolean> {
  const script = '"$0" --version >/dev/null && cd "$1"';
  const { file, args, uid, gid } = launch.command("/bin/sh", ["-c", script, postgres, dataDir]);
  try {
    await run(file, args, { cwd: "/", timeout: 10_000, ...(uid === undefined ? {} : { uid, gid }) });
    return true;
  } catch {
    return false;
  }
}

/** The owner of the clone (if root started it in a user's home), then the system's accounts for this purpose. */
async function otherUsers(accounts: Account[], postgres: string, dataDir: string): Promise<Account[]> {
  const owners = await Promise.all([postgres, path.dirname(dataDir), dataDir].map((file) => stat(file)));
  const wanted = [
    ...owners.map(({ uid }) => accounts.find((account) => account.uid === uid)),
    ...["postgres", "_postgres", "nobody"].map((name) => accounts.find((account) => account.name === name)),
  ];
  return [...new Set(wanted.filter((account) => account !== undefined && account.uid !== 0))] as Account[];
}

interface Account {
  readonly name: string;
  readonly uid: number;
  readonly gid: number;
}

/** Local accounts only: those of a directory service are not ours to run a server as. */
async function readAccounts(): Promise<Account[]> {
  const text = await readFile("/etc/passwd", "utf8").catch(() => "");
  return text.split("\n").flatMap((line) => {
    const [name = "", , uid, gid] = line.split(":");
    // macOS lists nobody's uid as -2.
    return /^-?\d+$/.test(uid ?? "") ? [{ name, uid: Number(uid) >>> 0, gid: Number(gid) >>> 0 }] : [];
  });
}

/**
 * Changes the owner of a directory tree. The top goes last: until its owner has changed, the next start sees the work as not
 * done. Changes nothing unless the way of running has changed since the last start.
 */
export async function chownTree(owner: Launch["owner"], directory: string): Promise<void> {
  if (owner === undefined || (await stat(directory)).uid === owner.uid) return;
  for (const entry of await readdir(directory, { recursive: true, withFileTypes: true })) {
    const file = path.join(entry.parentPath, entry.name);
    if ((await lstat(file)).uid !== owner.uid) await lchown(file, owner.uid, owner.gid);
  }
  await chown(directory, owner.uid, owner.gid);
}
