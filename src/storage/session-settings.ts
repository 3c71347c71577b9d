/**
 * Settings of a session on which answers hang, whatever the server, the database or the role has them at. (A server's time zone
 * is that of whoever made it: in Korea mostly Asia/Seoul. Prisma takes every time for UTC's.)
 */

import type { Statements } from "./database.ts";

interface Decisive {
  /** In small letters. */
  readonly name: string;
  /** As it is set, where it is not as it may be. */
  readonly value: string;
  /** As it may be: a pattern of JavaScript's and of Postgres' alike. */
  readonly fits: string;
}

const decisive: readonly Decisive[] = [
  { name: "timezone", value: "UTC", fits: "^(etc/)?(utc|uct|gmt|zulu|universal|greenwich)([+-]?0)?$" },
  { name: "datestyle", value: "ISO, YMD", fits: "^iso" },
  // Above it, of two calls that meet at a row one fails.
  { name: "default_transaction_isolation", value: "read committed", fits: "^read (un)?committed$" },
  // What a crash would take back must not be acknowledged. How far beyond this disk a commit goes is the operator's to say.
  { name: "synchronous_commit", value: "on", fits: "^(on|local|remote_write|remote_apply)$" },
];

/** For a session that is ours. */
export const decisiveSettings = decisive
  .map(
    ({ name, value, fits }) =>
      `SELECT set_config('${name}', '${value}', false) WHERE current_setting('${name}') !~* '${fits}'`,
  )
  .join("; ");

/** Whose a value is, by `pg_settings.source`, and so what changes it. Whatever else it is of, a database's own goes before. */
const owners: Readonly<Record<string, string>> = {
  user: "ALTER ROLE …",
  "database user": "ALTER ROLE … IN DATABASE …",
};

/**
 * Of sessions that are not ours alone: the first setting that they have at a value that will not do, and what sets it right. Undefined
 * where there is none.
 */
export async function unfitSetting(
  database: Pick<Statements, "query">,
): Promise<{ readonly isNow: string; readonly remedy: string } | undefined> {
  const text = "SELECT lower(name), setting, source FROM pg_settings WHERE lower(name) = ANY ($1)";
  const values = [decisive.map(({ name }) => name)];
  const { rows } = await database.query<string[]>({ text, values, rowMode: "array" });
  for (const { name, value, fits } of decisive) {
    const [, isNow = "", source = ""] = rows.find(([one]) => one === name) ?? [];
    if (new RegExp(fits, "i").test(isNow)) continue;
    const owner = owners[source] ?? "ALTER DATABASE …";
    return { isNow: `${name} = '${isNow}'`, remedy: `${owner} SET ${name} = '${value}'` };
  }
  return undefined;
}
