/** Installs packages that only a measurement needs, so that they are no dependencies of the service. */

import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFile } from "node:fs/promises";
import path from "node:path";
import { reportProgress } from "./progress.ts";

interface Manifest {
  readonly version?: string;
  readonly dependencies?: Readonly<Record<string, string>>;
}

/** Installs the packages of the package.json in `bench/<name>` unless they are there, and returns that folder. */
export async function installPackages(name: "peer" | "plot"): Promise<string> {
  const folder = path.join(import.meta.dirname, name);
  const { dependencies } = await manifestIn(folder);
  const wanted = Object.entries(dependencies ?? {});
  const installed = await Promise.all(wanted.map(([dependency]) => versionIn(folder, dependency)));
  if (wanted.every(([, version], index) => installed[index] === version)) return folder;
  reportProgress(`installing ${wanted.map((pair) => pair.join(" ")).join(", ")} in bench/${name} (npm ci)`);
  const npm = spawn("npm", ["ci", "--ignore-scripts", "--no-audit", "--no-fund"], {
    cwd: folder,
    // Makes npm run on the same Node as this process.
    env: {
      ...process.env,
      PATH: `${path.dirname(process.execPath)}${path.delimiter}${process.env.PATH ?? ""}`,
    },
    stdio: ["ignore", "ignore", "inherit"],
  });
  const [code] = await once(npm, "exit");
  if (code !== 0)
    throw new Error(`the packages of bench/${name} were not installed: npm ci ended with ${code}`);
  return folder;
}

/** The version of an installed package; undefined if it is not installed. */
export async function versionIn(folder: string, dependency: string): Promise<string | undefined> {
  const manifest = await manifestIn(path.join(folder, "node_modules", dependency)).catch(() => undefined);
  return manifest?.version;
}

async function manifestIn(folder: string): Promise<Manifest> {
  return JSON.parse(await readFile(path.join(folder, "package.json"), "utf8"));
}
