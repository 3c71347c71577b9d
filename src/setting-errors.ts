/** Reports what fails at a start as an error of the setting to change. */

import { Failure } from "./failures.ts";

/** An invalid setting. The message is one line that names the setting and contains no secret. */
export class SettingError extends Error {}

/** Reports an unusable database as an error of `setting`, with the database's address but never its password. */
export async function withDatabaseErrors<T>(setting: string, url: string, use: () => Promise<T>): Promise<T> {
  try {
    return await use();
  } catch (error) {
    // Already names a setting: that of another database that `use` connects to.
    if (error instanceof SettingError) throw error;
    const reason = reasonOf(causeOf(error), url);
    throw new SettingError(`${setting}: the database at ${addressIn(url)} cannot be used: ${reason}`);
  }
}

function reasonOf(cause: Error, url: string): string {
  if (asksForPassword(cause) && !hasPassword(url)) return noPassword;
  if (hasUnknownIssuer(cause)) return unknownIssuer;
  return oneLine(cause.message);
}

/** The address the driver uses: its parameters come before the URL's own parts, and what both omit is from PGHOST and PGPORT. */
function addressIn(url: string): string {
  const { hostname, port, pathname, searchParams } = new URL(url);
  const last = (name: string) => searchParams.getAll(name).at(-1);
  const host = last("host") || decodeURIComponent(hostname) || process.env.PGHOST || "localhost";
  return `${host}:${last("port") || port || process.env.PGPORT || 5432}${pathname}`;
}

const unknownIssuer =
  "its certificate is not from an authority that this process trusts: add the authority's file as sslrootcert=FILE to the URL";
const unknownIssuerCodes: ReadonlySet<unknown> = new Set([
  "DEPTH_ZERO_SELF_SIGNED_CERT",
  "SELF_SIGNED_CERT_IN_CHAIN",
  "UNABLE_TO_GET_ISSUER_CERT",
  "UNABLE_TO_GET_ISSUER_CERT_LOCALLY",
  "UNABLE_TO_VERIFY_LEAF_SIGNATURE",
]);

const hasUnknownIssuer = (error: Error): boolean => "code" in error && unknownIssuerCodes.has(error.code);

const noPassword = "the server requires a password: set one in the URL or in PGPASSWORD";

/**
 * Without a password, the driver itself fails over SCRAM; over other methods it sends one that the server refuses with
 * 28P01.
 */
function asksForPassword(error: Error): boolean {
  const wrongPassword = "28P01";
  return ("code" in error && error.code === wrongPassword) || /client password must be/.test(error.message);
}

function hasPassword(url: string): boolean {
  const { password, searchParams } = new URL(url);
  return Boolean(password || searchParams.get("password") || process.env.PGPASSWORD);
}

/** Reports an unusable embedded database as an error of DATA_DIR, which names its directory and disk. */
export async function withEmbeddedDatabaseErrors<T>(dataDir: string, use: () => Promise<T>): Promise<T> {
  try {
    return await use();
  } catch (error) {
    throw new SettingError(
      `DATA_DIR ${dataDir}: its database cannot be used: ${oneLine(causeOf(error).message)}`,
    );
  }
}

/** EAFNOSUPPORT: of an IPv6 address, on a machine whose kernel has no IPv6. */
const noOwnAddress: ReadonlySet<string | undefined> = new Set([
  "EADDRNOTAVAIL",
  "EAFNOSUPPORT",
  "ENOTFOUND",
  "EAI_AGAIN",
  "EINVAL",
]);

/**
 * Reports a port or address that cannot be bound as an error of `${name}_PORT` or `${name}_HOST`; `name` is `GRPC`,
 * `OPS`, or empty for the merchants' port.
 */
export async function withListenErrors<T>(
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
    if (noOwnAddress.has(code)) {
      throw new SettingError(`${setting("HOST")}: ${host} is not an address of this machine`);
    }
    throw error;
  }
}

/**
 * Node wraps the errors of a host name's addresses in an AggregateError: this returns the first of them. Of a Failure, whose own
 * message is for callers of the API, it returns the cause.
 */
export function causeOf(error: unknown): Error {
  if (error instanceof Failure && error.cause !== undefined) return causeOf(error.cause);
  if (error instanceof AggregateError && error.errors[0] instanceof Error) return error.errors[0];
  return error instanceof Error ? error : new Error(String(error));
}

export const oneLine = (text: string) => text.replace(/\s+/g, " ").trim();
