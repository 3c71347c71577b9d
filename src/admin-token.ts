import { randomBytes } from "node:crypto";
import { chmod, link, readFile, rm, writeFile } from "node:fs/promises";
import path from "node:path";
import { newCredential } from "./core/credential.ts";

/**
 * The installation's admin token in DATA_DIR/admin-token, made at the first start for whoever may read that
 * directory; the embedded database, which starts before, has made it. The file is written whole under another name
 * first: a start that is killed leaves none or all of it.
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
  const temporary = `${file}.${randomBytes(4).toString("hex")}`;
  await writeFile(temporary, `${newCredential("svc")}\n`, { mode: 0o600, flag: "wx" });
  try {
    await link(temporary, file);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "EEXIST") throw error;
  } finally {
    await rm(temporary, { force: true });
  }
  return (await readFile(file, "utf8")).trim();
}
