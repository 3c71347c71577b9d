import { randomBytes } from "node:crypto";
import pg from "pg";
import { inject, onTestFinished } from "vitest";
import { type Database, openDatabase } from "../../src/storage/database.ts";

export interface TestDatabase {
  /** For DATABASE_URL of a service under test. */
  url: string;
  /** For `pg` clients in the test itself. */
  connection: { host: string; port: number; user: string; password: string; database: string };
  /** Drops the database, even with open connections. */
  drop(): Promise<void>;
}

/** A database for one suite: migrated unless `empty` or `encoding` is given, and without any rows. */
export async function createDatabase(
  options: { empty?: boolean; encoding?: string } = {},
): Promise<TestDatabase> {
  const { template, ...server } = inject("postgres");
  const name = `suite_${randomBytes(6).toString("hex")}`;
  const { empty = false, encoding } = options;
  await administer(
    encoding === undefined
      ? `CREATE DATABASE ${name} TEMPLATE ${empty ? "template0" : template} STRATEGY FILE_COPY`
      : `CREATE DATABASE ${name} TEMPLATE template0 ENCODING '${encoding}' LOCALE_PROVIDER libc LOCALE 'C'`,
  );
  const url = new URL(`postgres://${server.host}:${server.port}/${name}`);
  url.username = server.user;
  url.password = server.password;
  return {
    url: url.href,
    connection: { ...server, database: name },
    drop: () => administer(`DROP DATABASE IF EXISTS ${name} WITH (FORCE)`),
  };
}

/**
 * A pool for a test's own queries, to be ended before its database is dropped. When a pool has ended, its connections may still
 * be open: the errors that the drop causes on them are ignored. A connection that a failed test has not given back is closed at the
 * end, which would otherwise wait for it.
 */
export function openPool(config: pg.PoolConfig): pg.Pool {
  const pool = new pg.Pool(config);
  const taken = new Set<pg.PoolClient>();
  pool.on("error", () => {});
  pool.on("connect", (client) => client.on("error", () => {}));
  pool.on("acquire", (client) => taken.add(client));
  pool.on("release", (_error, client) => taken.delete(client));
  const end = pool.end.bind(pool) as () => Promise<void>;
  pool.end = (async () => {
    const ended = end();
    for (const client of taken) client.release(true);
    await ended;
  }) as typeof pool.end;
  return pool;
}

/** A database of the running test's own, as the service opens it, with one connection, and a pool for the test's queries. */
export async function openOwnDatabase(): Promise<{ readonly database: Database; readonly db: pg.Pool }> {
  const own = await createDatabase();
  const database = openDatabase(own.connection, { poolSize: 1, onError() {} });
  const db = openPool(own.connection);
  onTestFinished(async () => {
    await Promise.all([database.close(), db.end()]);
    await own.drop();
  });
  return { database, db };
}

async function administer(statement: string): Promise<void> {
  const { template: _, ...server } = inject("postgres");
  const client = new pg.Client({ ...server, database: "postgres" });
  await client.connect();
  try {
    await client.query(statement);
  } finally {
    await client.end();
  }
}

/**
 * The columns of a SELECT: after how long the server gives up a client that has vanished; `unanswered`: in milliseconds, after it has sent
 * something, `silent`: in seconds, after it has not.
 */
export const tcpSettings = `current_setting('tcp_user_timeout')::int AS unanswered,
  current_setting('tcp_keepalives_idle')::int
    + current_setting('tcp_keepalives_interval')::int * current_setting('tcp_keepalives_count')::int AS silent`;

/** Sets the defaults of settings for future sessions of this database. */
export async function setSessionDefaults(
  connection: pg.ClientConfig,
  settings: Readonly<Record<string, string>>,
) {
  const client = new pg.Client(connection);
  await client.connect();
  for (const [name, value] of Object.entries(settings)) {
    await client.query(`ALTER DATABASE ${connection.database} SET ${name} = '${value}'`);
  }
  await client.end();
}
