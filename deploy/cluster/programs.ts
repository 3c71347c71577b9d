/** The programs that the cluster consists of, from the system's (Debian's) packages. */

import { accessSync, constants, readdirSync } from "node:fs";
import path from "node:path";

export interface Programs {
  /** The folder with PostgreSQL's programs. */
  readonly postgres: string;
  readonly pgbouncer: string;
  readonly haproxy: string;
  /** Undefined if it is not installed: it is optional. */
  readonly redis: string | undefined;
}

/** Names the Debian packages of the missing programs. */
export class MissingPrograms extends Error {
  constructor(packages: readonly string[]) {
    super(`this machine lacks ${packages.join(", ")}: apt-get install ${packages.join(" ")}`);
  }
}

export function findPrograms(): Programs {
  const postgres = findPostgres();
  const pgbouncer = findProgram("pgbouncer");
  const haproxy = findProgram("haproxy");
  if (postgres === undefined || pgbouncer === undefined || haproxy === undefined) {
    throw new MissingPrograms([
      ...(postgres === undefined ? ["postgresql"] : []),
      ...(pgbouncer === undefined ? ["pgbouncer"] : []),
      ...(haproxy === undefined ? ["haproxy"] : []),
    ]);
  }
  return { postgres, pgbouncer, haproxy, redis: findProgram("redis-server") ?? findProgram("valkey-server") };
}

/** Debian has one folder per major version; the newest is used. */
function findPostgres(): string | undefined {
  const debian = "/usr/lib/postgresql";
  const versions = foldersOf(debian).sort((a, b) => Number(b) - Number(a));
  const folders = [...versions.map((version) => path.join(debian, version, "bin")), ...searched()];
  return folders.find((folder) =>
    ["initdb", "postgres", "pg_basebackup"].every((name) => isExecutable(path.join(folder, name))),
  );
}

/** The path of a program; undefined if it is not installed. */
export function findProgram(name: string): string | undefined {
  return searched()
    .map((folder) => path.join(folder, name))
    .find(isExecutable);
}

/** Debian installs servers in sbin, which is not in an ordinary user's PATH. */
const searched = () => [...(process.env.PATH ?? "").split(path.delimiter), "/usr/sbin", "/sbin"];

function foldersOf(parent: string): string[] {
  try {
    return readdirSync(parent);
  } catch {
    return [];
  }
}

function isExecutable(file: string): boolean {
  try {
    accessSync(file, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}
