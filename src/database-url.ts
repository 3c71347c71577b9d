import { z } from "zod";

/** Parameters that the service sets on each connection itself: in the driver, the URL's value would take precedence. */
const ownParameters =
  /([?&])(?:application_name|client_encoding|statement_timeout|query_timeout|idle_in_transaction_session_timeout)=[^&]*/g;

/** Whether the URL lists several hosts, as libpq takes them: in their place, or in the parameter `host`. */
const listsHosts = (text: string) =>
  /^\w+:\/\/(?:[^/?#]*@)?[^/?#@]*,[^/?#@]*(?:[/?#]|$)/.test(text) || /[?&]host=[^&]*(?:,|%2c)/i.test(text);

/** What the driver takes from a URL, in the spelling that it requires. */
const effectiveParameters: ReadonlySet<string> = new Set([
  ...["host", "port", "user", "password", "options", "lock_timeout", "schema"],
  ...["ssl", "sslmode", "sslcert", "sslkey", "sslrootcert", "sslnegotiation", "uselibpqcompat"],
]);

/**
 * The names of a database URL's parameters that other programs may understand, but the driver does not. What is no name may be
 * the rest of a password with an unescaped `?`.
 */
export const ineffectiveParameters = (url: string): string[] =>
  [...new Set(new URL(url).searchParams.keys())].filter(
    (name) => /^\w+$/.test(name) && !effectiveParameters.has(name),
  );

/**
 * The values that the driver knows, in a URL and as PGSSLMODE. With another in a URL it verifies in full, as PGSSLMODE it does
 * without TLS; and so it does if the URL has an empty one, for which nothing was filled in.
 */
export const sslModes = ["disable", "prefer", "require", "verify-ca", "verify-full", "no-verify"] as const;

export const databaseUrl = z
  .string()
  .refine(
    (text) => !listsHosts(text),
    "must name one host, such as a proxy or an address that follows the primary: the driver tries no second one",
  )
  .refine(
    (text) => /^postgres(ql)?:\/\//.test(text) && URL.canParse(text),
    "must be a URL such as postgres://user:password@host:5432/database, or, for a socket, postgres:///database?host=/directory&user=user",
  )
  .refine(
    (text) =>
      URL.parse(text)
        ?.searchParams.getAll("schema")
        .every((schema) => /^(public)?$/.test(schema)),
    "must not have the parameter schema, which only Prisma's command knows: leave it out, or choose a schema with options=-c%20search_path%3DNAME",
  )
  .refine(
    (text) => !URL.parse(text)?.searchParams.getAll("sslrootcert").includes("system"),
    "must not have sslrootcert=system, which the driver takes for a file's name: leave it out for a public authority, and set NODE_OPTIONS=--use-system-ca to trust those of this machine, too",
  )
  .refine(
    (text) =>
      URL.parse(text)
        ?.searchParams.getAll("sslmode")
        .every((mode) => sslModes.some((known) => known === mode)),
    `must have one of these as its sslmode, or none: ${sslModes.join(", ")}`,
  )
  .transform((text) =>
    // The driver already verifies in full for each of these modes, and prints a nine-line warning on standard error
    // that a later version will not.
    /[?&]uselibpqcompat=true(&|$)/.test(text)
      ? text
      : text.replace(/([?&]sslmode=)(?:prefer|require|verify-ca)(?=&|$)/g, "$1verify-full"),
  )
  .transform((text) => text.replace(ownParameters, "$1"));
