/**
 * Settings of a session on which answers hang, whatever the server, the database or the role has them at. (A server's time zone
 * is that of whoever made it: in Korea mostly Asia/Seoul. Prisma takes every time for UTC's.)
 */

import type { Statements } from "./database.ts";

interface Decisive {
  readonly name: string;
  /** As it is set. */
  readonly value: string;
  /** What it may be besides. */
  readonly fits: RegExp;
}

const decisive: readonly Decisive[] = [
  { name: "timezone", value: "UTC", fits: /^(Etc\/)?(UTC|UCT|GMT|Zulu|Universal)$/i },
  { name: "datestyle", value: "ISO, YMD", fits: /^ISO\b/ },
  // Above it, of two calls that meet at a row one fails.
  { name: "default_transaction_isolation", value: "read committed", fits: /^read (un)?committed$/ },
  // What a crash would take back must not be acknowledged. How far beyond this disk a commit goes is the operator's to say.
  { name: "synchronous_commit", value: "on", fits: /^(?!off$)/ },
];

const setText = ({ name, value }: Decisive) => `SET ${name} = '${value}'`;

/** For a session that is ours. */
export const decisiveSettings = [
  ...decisive.filter(({ name }) => name !== "synchronous_commit").map(setText),
  "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'",
].join("; ");

/**
 * Of sessions that are not ours alone: the first setting that they have at a value that will not do, and what sets it right. Undefined
 * where there is none.
 */
export async function unfitSetting(
  database: Pick<Statements, "query">,
): Promise<{ readonly isNow: string; readonly remedy: string } | undefined> {
  const text = `SELECT ${decisive.map(({ name }) => `current_setting('${name}')`).join(", ")}`;
  const { rows } = await database.query<string[]>({ text, rowMode: "array" });
  const [now = []] = rows;
  const unfit = decisive.find(({ fits }, index) => !fits.test(now[index] ?? ""));
  if (unfit === undefined) return undefined;
  return { isNow: `${unfit.name} = '${now[decisive.indexOf(unfit)]}'`, remedy: setText(unfit) };
}
