/** DATA_DIR, where an embedded Postgres lives: creates it, and locks it while a service uses it. */
import { access, chmod, constants, lchown, lstat, mkdir, open, realpath, stat } from "node:fs/promises";
import path from "node:path";
import { DatabaseSync } from "node:sqlite";

/** Creates the directory if it is missing; returns its real path. */
export async function makeDirectory(directory: string): Promise<string> {
  try {
    await makeWithParents(path.resolve(directory));
    const real = await realpath(directory);
    // initdb does not accept one, and Postgres' pid file has the path as one of its lines.
    if (/[\r\n]/.test(real)) throw new Error("its path contains a line break");
    return real;
  } catch (error) {
    throw new Error(`DATA_DIR ${directory} cannot be used: ${(error as Error).message}`);
  }
}

/**
 * Whoever may write to the directory can replace the admin token, so its mode does not depend on the umask, which may be 0.
 *
 * Not with `recursive`: below a directory that accepts no entries, like /proc, Node retries for ever, on a thread that keeps
 * the process from exiting.
 */
async function makeWithParents(directory: string): Promise<void> {
  if (await isDirectory(directory)) return;
  const parent = path.dirname(directory);
  if (parent !== directory) await makeWithParents(parent);
  await mkdir(directory, { mode: 0o755 }).catch(async (error) => {
    // Another service may have made it meanwhile.
    if (await isDirectory(directory)) return;
    if (error.code !== "EEXIST") throw error;
    throw new Error(
      `${directory} is ${(await isLink(directory)) ? "a symbolic link that leads to no" : "not a"} directory`,
    );
  });
}

/**
 * Gives a file that root has created to the directory's owner, who could otherwise not start the service again. Not for files
 * that were there before: whoever owns the directory can put files of root's there, which only root may read.
 */
export async function giveToOwner(file: string): Promise<void> {
  if (process.geteuid?.() !== 0) return;
  const owner = await stat(path.dirname(file));
  const { uid, nlink } = await lstat(file);
  // With other names it may be a file of root's from elsewhere.
  if (owner.uid === 0 || uid !== 0 || nlink !== 1) return;
  // Root without the capability for it, as in a container, can use the file all the same.
  await lchown(file, owner.uid, owner.gid).catch(() => {});
}

/** Flushes the names in the directory to disk: without it, a power failure can undo a rename, whatever was flushed of the file. */
export async function syncDirectory(directory: string): Promise<void> {
  const handle = await open(directory, "r");
  await handle.sync().finally(() => handle.close());
}

async function isLink(file: string): Promise<boolean> {
  return lstat(file).then(
    (found) => found.isSymbolicLink(),
    () => false,
  );
}

async function isDirectory(file: string): Promise<boolean> {
  return stat(file).then(
    (found) => found.isDirectory(),
    () => false,
  );
}

/**
 * Allows one service per data directory. Node offers no flock; SQLite's lock on a file is one of the kernel's, released however
 * the process dies, and does not depend on a pid. Postgres does not inherit it: the lock must be free for the next service
 * while an orphan still runs. Any account that can read the file could lock it, so no other account may. (The mode is set by
 * the file's name: opening and closing the file would release this process' own lock.)
 *
 * The cluster has such a lock as well, since `postgres` may be a link in several data directories. `name` is for the message.
 */
export async function lockDataDir(directory: string, name = `DATA_DIR ${directory}`): Promise<DatabaseSync> {
  const file = path.join(directory, "postgres.lock");
  // SQLite would create what it leads to: root must not, for the account that its Postgres runs as and that owns the cluster.
  if (await isLink(file)) throw new Error(`${name} cannot be locked: ${file} is a link`);
  const lock = new DatabaseSync(file, { open: false, timeout: 0 });
  try {
    lock.open();
    lock.exec("BEGIN EXCLUSIVE");
    const found = await lstat(file);
    // It may have become one: to any file of this user's.
    if (!found.isFile()) throw new Error("it is not a file");
    await chmod(file, 0o600);
    // It is always empty: what is not may be a database of root's that was moved here.
    if (found.size === 0) await giveToOwner(file);
    return lock;
  } catch (error) {
    if (lock.isOpen) lock.close();
    const busy = (error as { errcode?: number }).errcode === 5;
    throw new Error(
      busy
        ? `${name} is in use by another running service: stop it, or choose another DATA_DIR`
        : `${name} cannot be locked: ${await reasonOf(file, error as Error)}`,
    );
  }
}

/** With the names of the files that it may put beside it, SQLite accepts paths of up to 512 bytes. */
const longestDirectory = 490;

/** Why the file cannot be opened: SQLite does not tell a lack of permission from a read-only disk or a long path. */
async function reasonOf(file: string, error: Error): Promise<string> {
  const directory = path.dirname(file);
  try {
    await (await open(file, "a")).close();
    await access(directory, constants.W_OK);
  } catch (refusal) {
    return (refusal as Error).message;
  }
  const length = Buffer.byteLength(directory);
  return length > longestDirectory
    ? `its path is too long (${length} bytes, at most ${longestDirectory})`
    : `${file}: ${error.message}`;
}
