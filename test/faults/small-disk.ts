/** A file system that can be filled completely without affecting anything else. */

import { execFileSync } from "node:child_process";
import { mkdtempSync, rmdirSync } from "node:fs";
import { open, rm } from "node:fs/promises";
import os from "node:os";
import path from "node:path";

const sizeMb = 256;

/** Settings with which Postgres fits on it. */
export const smallDiskSettings = { max_wal_size: "64MB", min_wal_size: "32MB", shared_buffers: "32MB" };

export function mountSmallDisk(directory: string): void {
  execFileSync("mount", ["-t", "tmpfs", "-o", `size=${sizeMb}m,mode=0755`, "tmpfs", directory], {
    stdio: "ignore",
  });
}

export function unmountSmallDisk(directory: string): void {
  execFileSync("umount", ["--lazy", directory], { stdio: "ignore" });
}

/** Tries to mount one, since that needs root and, in some containers, further privileges. */
export function canMountSmallDisk(): boolean {
  const directory = mkdtempSync(path.join(os.tmpdir(), "phoneproof-disk-"));
  try {
    mountSmallDisk(directory);
    unmountSmallDisk(directory);
    return true;
  } catch {
    return false;
  } finally {
    rmdirSync(directory);
  }
}

/** Uses up all free space; returns a function that frees it again. */
export async function fillDisk(directory: string): Promise<() => Promise<void>> {
  const file = path.join(directory, "ballast");
  const handle = await open(file, "w");
  for (let size = 1024 * 1024; size >= 4096; ) {
    try {
      await handle.writeFile(Buffer.alloc(size));
    } catch {
      size >>= 1;
    }
  }
  await handle.close();
  return () => rm(file);
}
