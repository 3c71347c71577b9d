/** The connection over which migrations are applied, and what its server and its sessions must be like. */
import pg from "pg";
import { failWithLoss } from "./pooled-client.ts";
import { findUnacceptableSetting } from "./session-settings.ts";

/** A start without a database has to end within 15 s, also on a machine that takes seconds to load the program. */
const connectTimeoutMs = 8_000;
export const queryTimeoutMs = 10_000;
/**
 * Nothing passes while a migration builds an index for minutes, and some firewalls forget a connection after one, without telling
 * either end. Without it, a start would also wait for two hours for a server that has vanished.
 */
const keepAliveDelayMs = 45_000;

/** The connection of a start that applies migrations, not yet opened. */
export function createMigrationClient(connection: string | pg.ClientConfig): pg.Client {
  const client = new pg.Client({
    ...(typeof connection === "string" ? { connectionString: connection } : connection),
    connectionTimeoutMillis: connectTimeoutMs,
    keepAlive: true,
    keepAliveInitialDelayMillis: keepAliveDelayMs,
  });
  failWithLoss(client);
  return client;
}

/** Runs a short statement with a timeout, without which a frozen database would never let it end. */
export function run<Row extends pg.QueryResultRow>(
  client: pg.Client,
  text: string,
  { values = [], timeoutMs = queryTimeoutMs }: { values?: unknown[]; timeoutMs?: number } = {},
): Promise<pg.QueryResult<Row>> {
  const query = { text, values, query_timeout: timeoutMs };
  return client.query<Row>(query);
}

/** By `server_version_num`. Older versions are not tested, though they seem to work. */
const oldestVersion = 150_000;

/**
 * Rejects servers that are too old, not in UTF-8 or read-only. In SQL_ASCII, for example, lengths are in bytes: a long message
 * in Korean would be refused as oversized.
 */
export async function checkServer(client: pg.Client): Promise<void> {
  const { rows } = await run<{ number: number; version: string; encoding: string; isReadOnly: boolean }>(
    client,
    `SELECT current_setting('server_version_num')::int AS number, current_setting('server_version') AS version,
            current_setting('server_encoding') AS encoding,
            current_setting('transaction_read_only')::bool AS "isReadOnly"`,
  );
  const { number = 0, version = "", encoding = "", isReadOnly } = rows[0] ?? {};
  if (number < oldestVersion) {
    // After a blank follows the name of the packager.
    const [bare] = version.split(" ");
    throw new Error(`PostgreSQL ${bare} is too old: use ${oldestVersion / 10_000} or newer`);
  }
  if (encoding !== "UTF8") {
    throw new Error(
      `its encoding is ${encoding} and must be UTF8: use CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0`,
    );
  }
  if (isReadOnly) throw new Error("it is read-only: it is a standby, or default_transaction_read_only is on");
}

export async function checkSessions(client: pg.Client): Promise<void> {
  const fault = await findUnacceptableSetting(client);
  if (fault === undefined) return;
  throw new Error(
    `its sessions count as a pooler's (because of DATABASE_NOTICES_URL or DATABASE_PREPARED_STATEMENTS=false), and they start with ${fault.isNow}: run ${fault.remedy}`,
  );
}
