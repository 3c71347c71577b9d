/**
 * Session settings that results depend on, whatever the defaults of the server, the database or the role are. (A server's
 * default time zone is usually the local one: in Korea mostly Asia/Seoul. Prisma takes every timestamp as UTC.)
 */

import type pg from "pg";

interface SessionSetting {
  /** In lower case. */
  readonly name: string;
  /** The value to set if the current one is unacceptable. */
  readonly value: string;
  /** The acceptable values: a pattern that is valid in JavaScript and in Postgres. */
  readonly acceptable: string;
}

const settings: readonly SessionSetting[] = [
  { name: "timezone", value: "UTC", acceptable: "^(etc/)?(utc|uct|gmt|zulu|universal|greenwich)([+-]?0)?$" },
  { name: "datestyle", value: "ISO, YMD", acceptable: "^iso" },
  // Otherwise NULL in an array is a text, which is no number and no time.
  { name: "array_nulls", value: "on", acceptable: "^on$" },
  // At a higher level, one of two concurrent updates of a row fails.
  { name: "default_transaction_isolation", value: "read committed", acceptable: "^read (un)?committed$" },
  // A commit that a crash could undo must not be acknowledged. Whether to wait for standbys too is the operator's decision.
  { name: "synchronous_commit", value: "on", acceptable: "^(on|local|remote_write|remote_apply)$" },
];

/**
 * The SQL that sets them in a session of our own. An acceptable value is set, too: the session would otherwise adopt another one
 * when the server's configuration changes and is reloaded.
 */
export const requiredSettings = settings
  .map(
    ({ name, value, acceptable }) =>
      `SELECT set_config('${name}', CASE WHEN now ~* '${acceptable}' THEN now ELSE '${value}' END, false) FROM current_setting('${name}') now`,
  )
  .join("; ");

/** In seconds, and the last one in milliseconds. */
const clientTimeouts = {
  tcp_keepalives_idle: 15,
  tcp_keepalives_interval: 10,
  tcp_keepalives_count: 3,
  tcp_user_timeout: 45_000,
};

/**
 * The SQL that makes the server give up a session of ours, with the locks that it holds, within a minute after this process has
 * vanished without closing it, as in a power failure or behind a network that is cut. By default the server would wait for two
 * hours, or for a quarter of an hour if it has just sent something. Without effect on a Unix socket.
 */
export const giveUpVanishedClient = (set: "SET" | "SET LOCAL") =>
  Object.entries(clientTimeouts)
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
  client: pg.ClientBase,
): Promise<{ readonly isNow: string; readonly remedy: string } | undefined> {
  const text = "SELECT lower(name), setting, source FROM pg_settings WHERE lower(name) = ANY ($1)";
  const values = [settings.map(({ name }) => name)];
  const { rows } = await client.query<string[]>({ text, values, rowMode: "array" });
  for (const { name, value, acceptable } of settings) {
    const [, isNow = "", source = ""] = rows.find(([one]) => one === name) ?? [];
    if (new RegExp(acceptable, "i").test(isNow)) continue;
    const owner = owners[source] ?? "ALTER DATABASE …";
    return { isNow: `${name} = '${isNow}'`, remedy: `${owner} SET ${name} = '${value}'` };
  }
  return undefined;
}
