import { chmod, readFile, rename, rm, writeFile } from "node:fs/promises";
import path from "node:path";
import { adminToken } from "./config.ts";
import { newCredential } from "./core/credential.ts";
import { SettingError } from "./setting-errors.ts";
import { giveToOwner, syncDirectory } from "./storage/embedded/data-directory.ts";

/**
 * Returns the installation's admin token from DATA_DIR/admin-token, and creates it at the first start: whoever can read
 * that directory can administer. The embedded database starts before this call; it has created the directory, and its
 * lock admits one service at a time. The file is written under another name, flushed to disk and renamed, so an
 * interrupted start, even by a power failure, leaves no file or a complete one; and its name is flushed as well, before anybody
 * can use the token. Throws SettingError where the file cannot be used.
 */
export async function readOrMakeAdminToken(dataDir: string): Promise<string> {
  const file = path.join(dataDir, "admin-token");
  const existing = await during("read", file, () => readText(file));
  if (existing === "") {
    const token = newCredential("svc");
    await during("written", file, () => writeWhole(file, `${token}\n`));
    return token;
  }
  const { error } = adminToken.safeParse(existing);
  if (error) {
    throw new SettingError(
      `DATA_DIR: the token in ${file} ${error.issues[0]?.message}: delete the file, and the next start creates another`,
    );
  }
  await during("made private", file, () => chmod(file, 0o600));
  return existing;
}

async function readText(file: string): Promise<string> {
  const text = await readFile(file, "utf8").catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return "";
    throw error;
  });
  return text.trim();
}

async function writeWhole(file: string, text: string): Promise<void> {
  const unfinished = `${file}.new`;
  await rm(unfinished, { force: true });
  await writeFile(unfinished, text, { mode: 0o600, flag: "wx", flush: true });
  await giveToOwner(unfinished);
  await rename(unfinished, file);
  await syncDirectory(path.dirname(file));
}

async function during<T>(what: string, file: string, work: () => Promise<T>): Promise<T> {
  return work().catch((error: NodeJS.ErrnoException) => {
    throw new SettingError(`DATA_DIR: ${file} cannot be ${what} (${error.code})`);
  });
}
