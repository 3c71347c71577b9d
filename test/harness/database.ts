import { randomBytes } from "node:crypto";
import pg from "pg";
import { inject } from "vitest";

export interface TestDatabase {
  /** For DATABASE_URL of a service under test. */
  url: string;
  /** For `pg` in the test itself. */
  connection: { host: string; port: number; user: string; password: string; database: string };
  /** Removes it, whoever is still connected. */
  drop(): Promise<void>;
}

/** A database of the suite's own: migrated unless `empty` or in another encoding, and otherwise without a row. */
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
 * Connections that a test looks through, to be ended before their database is dropped. That a pool has ended does not mean that its
 * connections have: what the drop does to them is nobody's error.
 */
export function openPool(config: pg.PoolConfig): pg.Pool {
  const pool = new pg.Pool(config);
  pool.on("error", () => {});
  pool.on("connect", (client) => client.on("error", () => {}));
  return pool;
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

/** What sessions of this database begin with from now on. */
export async function haveSessionsBegin(
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
