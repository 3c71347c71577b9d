import { chmod, readFile, rename, rm, writeFile } from "node:fs/promises";
import path from "node:path";
import { adminToken, SettingError } from "./config.ts";
import { newCredential } from "./core/credential.ts";

/**
 * The installation's admin token in DATA_DIR/admin-token, made at the first start for whoever may read that
 * directory; the embedded database, which starts before, has made it, and lets in one service at a time. The file is
 * written whole under another name first, and onto the disk: a start that is cut off, by a power failure too, leaves none or
 * all of it.
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
      `DATA_DIR: the token in ${file} ${error.issues[0]?.message}; without that file another is made`,
    );
  }
  await during("kept from others", file, () => chmod(file, 0o600));
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
  await rename(unfinished, file);
}

async function during<T>(what: string, file: string, work: () => Promise<T>): Promise<T> {
  return work().catch((error: NodeJS.ErrnoException) => {
    throw new SettingError(`DATA_DIR: ${file} cannot be ${what} (${error.code})`);
  });
}
