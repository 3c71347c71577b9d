/**
 * Session settings that results depend on, whatever the defaults of the server, the database or the role are. (A server's
 * default time zone is usually the local one: in Korea mostly Asia/Seoul. Prisma takes every timestamp as UTC.)
 */

import type { Statements } from "./database.ts";

interface Decisive {
  /** In lower case. */
  readonly name: string;
  /** The value to set if the current one is unacceptable. */
  readonly value: string;
  /** The acceptable values: a pattern that is valid in JavaScript and in Postgres. */
  readonly fits: string;
}

const decisive: readonly Decisive[] = [
  { name: "timezone", value: "UTC", fits: "^(etc/)?(utc|uct|gmt|zulu|universal|greenwich)([+-]?0)?$" },
  { name: "datestyle", value: "ISO, YMD", fits: "^iso" },
  // Otherwise NULL in an array is a text, which is no number and no time.
  { name: "array_nulls", value: "on", fits: "^on$" },
  // At a higher level, one of two concurrent updates of a row fails.
  { name: "default_transaction_isolation", value: "read committed", fits: "^read (un)?committed$" },
  // A commit that a crash could undo must not be acknowledged. Whether to wait for standbys too is the operator's decision.
  { name: "synchronous_commit", value: "on", fits: "^(on|local|remote_write|remote_apply)$" },
];

/**
 * The SQL that sets them in a session of our own. An acceptable value is set, too: the session would otherwise adopt another one
 * when the server's configuration changes and is reloaded.
 */
export const requiredSettings = decisive
  .map(
    ({ name, value, fits }) =>
      `SELECT set_config('${name}', CASE WHEN now ~* '${fits}' THEN now ELSE '${value}' END, false) FROM current_setting('${name}') now`,
  )
  .join("; ");

/** In seconds, and the last one in milliseconds. */
const patienceWithClient = {
  tcp_keepalives_idle: 15,
  tcp_keepalives_interval: 10,
  tcp_keepalives_count: 3,
  tcp_user_timeout: 45_000,
};

/**
 * The SQL that makes the server give up a session of ours, with the locks that it holds, within a minute after this process has
 * vanished without a word, as in a power failure or behind a network that is cut. By default the server would wait for two
 * hours, or for a quarter of an hour if it has just sent something. Without effect on a Unix socket.
 */
export const giveUpVanishedClient = (set: "SET" | "SET LOCAL") =>
  Object.entries(patienceWithClient)
    .map(([name, value]) => `${set} ${name} = ${value}`)
    .join("; ");

/**
 * The statement that changes a setting, by the origin of its value (`pg_settings.source`). A value from any other source is
 * overridden by the database's own setting.
 */
const owners: Readonly<Record<string, string>> = {
  user: "ALTER ROLE …",
  "database user": "ALTER ROLE … IN DATABASE …",
};

/**
 * For sessions that a pooler shares, which we cannot set: the first setting with an unacceptable value, and the statement that
 * corrects it. Undefined if all are acceptable.
 */
export async function findUnacceptableSetting(
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
