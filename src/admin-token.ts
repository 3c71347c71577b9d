import { chmod, readFile, rename, rm, writeFile } from "node:fs/promises";
import path from "node:path";
import { newCredential } from "./core/credential.ts";

/**
 * The installation's admin token in DATA_DIR/admin-token, made at the first start for whoever may read that
 * directory; the embedded database, which starts before, has made it, and lets in one service at a time. The file is
 * written whole under another name first, and onto the disk: a start that is cut off, by a power failure too, leaves none or
 * all of it.
 */
export async function readOrMakeAdminToken(dataDir: string): Promise<string> {
  const file = path.join(dataDir, "admin-token");
  const existing = await readFile(file, "utf8").catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return "";
    throw error;
  });
  if (existing.trim() !== "") {
    await chmod(file, 0o600);
    return existing.trim();
  }
  const token = newCredential("svc");
  const unfinished = `${file}.new`;
  await rm(unfinished, { force: true });
  await writeFile(unfinished, `${token}\n`, { mode: 0o600, flag: "wx", flush: true });
  await rename(unfinished, file);
  return token;
}
