/**
 * As whom the embedded Postgres runs. Postgres refuses an effective uid of 0, and the service is often
 * started by root: in a container, on a fresh machine.
 */
import { execFile } from "node:child_process";
import { chmod, chown, lchown, lstat, readdir, readFile, stat } from "node:fs/promises";
import path from "node:path";
import { promisify } from "node:util";

const run = promisify(execFile);

export interface Launch {
  /** The command that becomes `binary`, under the same process id. */
  command(binary: string, args: string[]): { file: string; args: string[]; uid?: number; gid?: number };
  /** Whom the files of the cluster must belong to; undefined: whoever made them is the one who runs it. */
  readonly owner: { uid: number; gid: number } | undefined;
}

const asOurselves: Launch = { command: (file, args) => ({ file, args }), owner: undefined };

/**
 * In a user namespace our own files stay reachable (root's clone under /root, mode 700) while the process shows
 * the uid of another account. Nothing has to change hands, so it comes before another user. `unshare` executes
 * the program in its own place, so the pid and its signals are Postgres's.
 */
function inNamespace(uid: number, owner: Launch["owner"]): Launch {
  const map = ["--user", `--map-user=${uid}`, `--map-group=${uid}`];
  return { command: (binary, args) => ({ file: "unshare", args: [...map, "--", binary, ...args] }), owner };
}

function asUser({ uid, gid }: { uid: number; gid: number }): Launch {
  return { command: (file, args) => ({ file, args, uid, gid }), owner: { uid, gid } };
}

/** The first way of running Postgres that reaches both its program and `dataDir`, tried, not guessed. */
export async function chooseLaunch(postgres: string, dataDir: string): Promise<Launch> {
  const accounts = await readAccounts();
  const uid = process.geteuid?.();
  const unprivileged = accounts.find((account) => account.uid !== 0);
  if (uid !== 0) {
    // initdb wants an account for its uid, which a container's arbitrary one (`docker run --user`) lacks.
    if (accounts.some((account) => account.uid === uid) || process.platform !== "linux") return asOurselves;
    const namespace = inNamespace(unprivileged?.uid ?? 65_534, undefined);
    return (await reaches(namespace, postgres, dataDir)) ? namespace : asOurselves;
  }
  const namespace = inNamespace(unprivileged?.uid ?? 65_534, { uid: 0, gid: 0 });
  if (await reaches(namespace, postgres, dataDir)) return namespace;
  // Containers forbid new namespaces, and let another user in nearly everywhere.
  for (const account of await otherUsers(accounts, postgres, dataDir)) {
    // Search permission only: whoever passes through still needs a name and that file's own permission.
    await chmod(dataDir, (await stat(dataDir)).mode | 0o011);
    const launch = asUser(account);
    if (await reaches(launch, postgres, dataDir)) return launch;
  }
  throw new Error(
    `PostgreSQL does not run as root, and no other user can reach ${dataDir} and ${postgres}: ` +
      "start the service as an ordinary user, or set DATABASE_URL",
  );
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

/** The owner of the clone (root in a user's home), then the system's accounts for the purpose. */
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

/** The machine's own; those of a directory service are not for us to run a server as. */
async function readAccounts(): Promise<Account[]> {
  const text = await readFile("/etc/passwd", "utf8").catch(() => "");
  return text.split("\n").flatMap((line) => {
    const [name = "", , uid, gid] = line.split(":");
    // macOS writes nobody's as -2.
    return /^-?\d+$/.test(uid ?? "") ? [{ name, uid: Number(uid) >>> 0, gid: Number(gid) >>> 0 }] : [];
  });
}

/**
 * Hands a directory over. The top goes last: until it has changed hands a next start sees the work undone.
 * Runs only when the way of running has changed since the last start.
 */
export async function giveTo(owner: Launch["owner"], directory: string): Promise<void> {
  if (owner === undefined || (await stat(directory)).uid === owner.uid) return;
  for (const entry of await readdir(directory, { recursive: true, withFileTypes: true })) {
    const file = path.join(entry.parentPath, entry.name);
    if ((await lstat(file)).uid !== owner.uid) await lchown(file, owner.uid, owner.gid);
  }
  await chown(directory, owner.uid, owner.gid);
}
