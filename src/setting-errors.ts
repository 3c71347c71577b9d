/** What goes wrong at a start, as the setting that is to be changed. */

import { SettingError } from "./config.ts";

/** A database that cannot be used is a wrong setting; its address is told, its password never. */
export async function reach<T>(setting: string, url: string, use: () => Promise<T>): Promise<T> {
  try {
    return await use();
  } catch (error) {
    // Of another database that it takes.
    if (error instanceof SettingError) throw error;
    const cause = causeOf(error);
    const reason = asksForPassword(cause) && !hasPassword(url) ? noPassword : oneLine(cause.message);
    throw new SettingError(`${setting}: the database at ${addressIn(url)} cannot be used: ${reason}`);
  }
}

/** As the driver finds it: what the URL leaves open is in the environment. */
function addressIn(url: string): string {
  const { hostname, port, pathname, searchParams } = new URL(url);
  const host = hostname || searchParams.get("host") || process.env.PGHOST || "localhost";
  return `${host}:${port || process.env.PGPORT || 5432}${pathname}`;
}

const noPassword = "the server asks for a password, and there is none in it nor in PGPASSWORD";

/** Without one, the driver fails over SCRAM by itself; over any other way it sends something, which the server refuses. */
function asksForPassword(error: Error): boolean {
  const wrongPassword = "28P01";
  return ("code" in error && error.code === wrongPassword) || /client password must be/.test(error.message);
}

function hasPassword(url: string): boolean {
  const { password, searchParams } = new URL(url);
  return Boolean(password || searchParams.get("password") || process.env.PGPASSWORD);
}

/** The embedded database is used, and has its disk, where DATA_DIR says. */
export async function reachEmbedded<T>(dataDir: string, use: () => Promise<T>): Promise<T> {
  try {
    return await use();
  } catch (error) {
    throw new SettingError(
      `DATA_DIR ${dataDir}: its database cannot be used: ${oneLine(causeOf(error).message)}`,
    );
  }
}

/** A port or address that cannot be had is a wrong setting of the name's: `GRPC`, `OPS`, or empty for the merchants'. */
export async function listening<T>(
  name: string,
  host: string,
  port: number,
  listen: () => Promise<T>,
): Promise<T> {
  const setting = (kind: string) => (name === "" ? kind : `${name}_${kind}`);
  try {
    return await listen();
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code === "EADDRINUSE") {
      throw new SettingError(`${setting("PORT")}: port ${port} on ${host} is in use by another program`);
    }
    if (code === "EACCES") {
      throw new SettingError(`${setting("PORT")}: this user may not listen on port ${port} of ${host}`);
    }
    if (code === "EADDRNOTAVAIL" || code === "ENOTFOUND" || code === "EAI_AGAIN" || code === "EINVAL") {
      throw new SettingError(`${setting("HOST")}: ${host} is not an address of this machine`);
    }
    throw error;
  }
}

/** Node wraps what happened at each address of a name. */
export function causeOf(error: unknown): Error {
  if (error instanceof AggregateError && error.errors[0] instanceof Error) return error.errors[0];
  return error instanceof Error ? error : new Error(String(error));
}

export const oneLine = (text: string) => text.replace(/\s+/g, " ").trim();
