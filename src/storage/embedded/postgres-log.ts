/** The log of an embedded Postgres. */
import {
  constants,
  copyFile,
  type FileHandle,
  lstat,
  open,
  rename,
  rm,
  stat,
  truncate,
} from "node:fs/promises";
import path from "node:path";
import { giveToOwner } from "./data-directory.ts";

const maxLogBytes = 10 * 1024 * 1024;

export interface ServerLog {
  readonly fd: number;
  size(): Promise<number>;
  since(offset: number): Promise<string>;
  close(): Promise<void>;
}

/**
 * Opens the log file and keeps it within bounds: the server appends, so the file can be truncated while the server writes to
 * it.
 */
export async function openLog(file: string): Promise<ServerLog> {
  const rotate = async () => {
    const { size } = await stat(file);
    if (size <= maxLogBytes) return;
    // Not into what may be a link to another file.
    await rm(`${file}.1`, { force: true });
    // The copy belongs to the log's owner: root's if the log is a link to a file that only root may read.
    await copyFile(file, `${file}.1`, constants.COPYFILE_EXCL);
    await truncate(file);
  };
  const handle = await openOwn(file);
  // One at a time, and none once the file is closed. A log that cannot be copied, as on a full disk, keeps growing.
  let rotated = Promise.resolve();
  const rotateNext = () => {
    rotated = rotated.then(rotate).catch(() => undefined);
    return rotated;
  };
  await rotateNext();
  const size = async () => (await handle.stat()).size;
  const since = async (offset: number) => {
    const buffer = Buffer.alloc(Math.max(0, (await size()) - offset));
    const { bytesRead } = await handle.read(buffer, 0, buffer.length, offset);
    return buffer.toString("utf8", 0, bytesRead);
  };
  const timer = setInterval(rotateNext, 60_000).unref();
  return {
    fd: handle.fd,
    size,
    since,
    close: async () => {
      clearInterval(timer);
      await rotated;
      await handle.close();
    },
  };
}

/**
 * What is created belongs to the directory's owner. A file of root's that is already there, as an earlier version left it, may
 * instead have been moved there from elsewhere: it becomes the previous log, and stays root's.
 */
async function openOwn(file: string): Promise<FileHandle> {
  if (process.geteuid?.() === 0 && (await stat(path.dirname(file))).uid !== 0) {
    const found = await lstat(file).catch(() => undefined);
    if (found?.isFile() && found.uid === 0) await rename(file, `${file}.1`);
  }
  try {
    const handle = await open(file, "ax+", 0o600);
    await giveToOwner(file);
    return handle;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
    return open(file, "a+", 0o600);
  }
}

/**
 * The line with the reason, from a log that ends with "database system is shut down". The first such line, since one failure,
 * as on a full disk, causes others. With Postgres' hint: that a page was only partly written may be all that Postgres says of
 * the disk.
 */
export function reasonIn(log: string): string {
  const lines = log.split("\n").filter((line) => line.trim() !== "");
  // A file of its own that Postgres cannot write ends its start, and is no error for the log.
  const signs = [/\b(ERROR|FATAL|PANIC|error):/, /\bLOG: +could not /];
  const found = signs.map((sign) => lines.findIndex((text) => sign.test(text))).find((at) => at >= 0);
  const [line = "", next = ""] = lines.slice(found ?? -1);
  const reason = line.replace(/^.*?\b(?:ERROR|FATAL|PANIC|LOG):\s*/, "").trim();
  const hint = /\bHINT:\s*(.+)/.exec(next)?.[1];
  return hint === undefined ? reason : `${reason} (${hint})`;
}
