import { spawn } from "node:child_process";
import { once } from "node:events";
import { cp, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import net from "node:net";
import os from "node:os";
import path from "node:path";
import pg from "pg";
import { afterEach, beforeEach, describe, expect, onTestFinished, test, vi } from "vitest";
import { openDatabase } from "../../src/storage/database.ts";
import { applyMigrations } from "../../src/storage/migrations.ts";
import { createWebhookDeliveries } from "../../src/storage/webhook-deliveries.ts";
import {
  createDatabase,
  openPool,
  setSessionDefaults,
  type TestDatabase,
  tcpSettings,
} from "../harness/database.ts";
import { startProcess } from "../ops/service-process.ts";

const first = "20260101000000_first";
const second = "20260102000000_second";
const prismaLock = 72707369;
/** A migration that takes this lock waits as long as the test holds it. */
const gate = 4711;
const throughGate = `SELECT pg_advisory_xact_lock(${gate});`;

let database: TestDatabase;
let folder: string;
/** The test's own session, for queries and locks. */
let client: pg.Client;

beforeEach(async () => {
  database = await createDatabase({ empty: true });
  folder = await mkdtemp(path.join(os.tmpdir(), "phoneproof-migrations-"));
  client = new pg.Client(database.connection);
  await client.connect();
});

afterEach(async () => {
  await client.end();
  await database.drop();
  await rm(folder, { recursive: true });
});

async function migration(name: string, sql: string): Promise<void> {
  await mkdir(path.join(folder, name), { recursive: true });
  await writeFile(path.join(folder, name, "migration.sql"), sql);
}

const apply = (options: { lockTimeoutMs?: number; signal?: AbortSignal } = {}) =>
  applyMigrations(database.connection, { folder, ...options });

async function tables(): Promise<string[]> {
  const { rows } = await client.query(
    "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY 1",
  );
  return rows.map(({ relname }) => relname);
}

async function recorded(): Promise<string[]> {
  const { rows } = await client.query("SELECT migration_name FROM _prisma_migrations ORDER BY started_at");
  return rows.map(({ migration_name }) => migration_name);
}

async function waitingFor(key: number, through: pg.Client | pg.Pool = client): Promise<number> {
  const { rows } = await through.query(
    `SELECT count(*)::int AS waiting FROM pg_locks
     WHERE locktype = 'advisory' AND objid = $1 AND NOT granted
       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`,
    [key],
  );
  return rows[0].waiting;
}

// Several waits last for the five seconds after which a migration yields a table.
const until = { timeout: 45_000, interval: 50 };

test("migrations are applied once, in the order of their names, and recorded as Prisma does", async () => {
  await migration(second, "ALTER TABLE fruit ADD name text;");
  await migration(first, "CREATE TABLE fruit (id int); CREATE TABLE tree (id int);");
  expect(await apply()).toEqual({ applied: [first, second] });
  expect(await apply()).toEqual({ applied: [] });
  expect(await tables()).toEqual(["_prisma_migrations", "fruit", "tree"]);
  const { rows } = await client.query("SELECT * FROM _prisma_migrations ORDER BY migration_name");
  expect(rows).toEqual([
    {
      id: expect.stringMatching(/^[0-9a-f-]{36}$/),
      migration_name: first,
      // As computed by sha256sum for the file.
      checksum: "648a1eb5ef1d923d1a59285624af133607b40e27bf4f9539f4f0137664ba1601",
      started_at: expect.any(Date),
      finished_at: expect.any(Date),
      rolled_back_at: null,
      logs: null,
      applied_steps_count: 1,
    },
    expect.objectContaining({ migration_name: second }),
  ]);
});

test("of three concurrent starts one applies the migrations; the others wait and find them applied", async () => {
  await migration(first, `CREATE TABLE fruit (id int); ${throughGate}`);
  await client.query("SELECT pg_advisory_lock($1)", [gate]);
  const starts = Promise.all([apply(), apply(), apply()]);
  await vi.waitUntil(
    async () => (await waitingFor(gate)) === 1 && (await waitingFor(prismaLock)) === 2,
    until,
  );
  await client.query("SELECT pg_advisory_unlock($1)", [gate]);
  const applied = (await starts).map((start) => start.applied);
  expect(applied.toSorted((a, b) => b.length - a.length)).toEqual([[first], [], []]);
  expect(await recorded()).toEqual([first]);
});

test("a start waits for a running `prisma migrate deploy`, but not for ever", async () => {
  await migration(first, "CREATE TABLE fruit (id int);");
  await client.query("SELECT pg_advisory_lock($1)", [prismaLock]);
  await expect(apply({ lockTimeoutMs: 50 })).rejects.toThrow("another process is migrating the database");
  const start = apply();
  await vi.waitUntil(async () => (await waitingFor(prismaLock)) === 1, until);
  expect(await tables()).toEqual([]);
  await client.query("SELECT pg_advisory_unlock($1)", [prismaLock]);
  expect(await start).toEqual({ applied: [first] });
});

test("a database with nothing to apply needs no lock", async () => {
  await migration(first, "CREATE TABLE fruit (id int);");
  await apply();
  await client.query("SELECT pg_advisory_lock($1)", [prismaLock]);
  expect(await apply({ lockTimeoutMs: 50 })).toEqual({ applied: [] });
});

test("timeouts that the database sets for its sessions do not end a migration", async () => {
  await migration(first, "CREATE TABLE fruit (id int); SELECT pg_sleep(0.55);");
  await setSessionDefaults(database.connection, {
    statement_timeout: "500ms",
    transaction_timeout: "500ms",
    idle_in_transaction_session_timeout: "1ms",
  });
  expect(await apply()).toEqual({ applied: [first] });
});

test("a migration's connection is kept alive, and its session given up within a minute after its process has vanished", async () => {
  const keepAlive = vi.spyOn(net.Socket.prototype, "setKeepAlive");
  onTestFinished(() => keepAlive.mockRestore());
  await migration(first, `CREATE TABLE patience AS SELECT ${tcpSettings};`);
  await apply();
  // Some firewalls forget a connection that has been silent for a minute.
  expect(keepAlive.mock.calls.map(([isOn, delayMs = 0]) => [isOn, delayMs > 0 && delayMs < 60_000])).toEqual([
    [true, true],
  ]);
  const { rows } = await client.query("SELECT * FROM patience");
  expect(rows).toEqual([{ unanswered: 45_000, silent: 45 }]);
});

test("a start that is stopped during a long statement ends that, too, so that the next one can migrate", async () => {
  await migration(first, "CREATE TABLE fruit (id int); SELECT pg_sleep(3600);");
  const stopping = new AbortController();
  const stopped = expect(apply({ signal: stopping.signal })).rejects.toThrow();
  const sleeping =
    "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND datname = current_database()";
  const isAsleep = async () => (await client.query(sleeping)).rowCount === 1;
  await vi.waitUntil(isAsleep, until);
  stopping.abort();
  await stopped;
  await vi.waitUntil(async () => !(await isAsleep()), until);
  await migration(first, "CREATE TABLE fruit (id int);");
  expect(await apply()).toEqual({ applied: [first] });
});

test("a migration that is rolled back by a deadlock with another session is applied again", async () => {
  await migration(first, "CREATE TABLE fruit (id int);");
  await migration(
    second,
    `INSERT INTO fruit VALUES (1);
     SELECT pg_advisory_xact_lock(${gate + 1}), pg_advisory_xact_lock(${gate + 2}); ${throughGate}`,
  );
  // Only the migration's session looks for a deadlock: there is one as soon as it waits for the gate, since the other waits already.
  await client.query("SET deadlock_timeout = '2min'");
  await client.query("SELECT pg_advisory_lock($1)", [gate]);
  const holder = openPool({ ...database.connection, max: 1 });
  onTestFinished(() => holder.end());
  await holder.query("SELECT pg_advisory_lock($1)", [gate + 2]);
  const start = apply();
  await vi.waitUntil(async () => (await waitingFor(gate + 2)) === 1, until);
  // Granted only once the migration has been rolled back.
  const granted = client.query("SELECT pg_advisory_lock($1)", [gate + 1]);
  await vi.waitUntil(async () => (await waitingFor(gate + 1, holder)) === 1, until);
  await holder.query("SELECT pg_advisory_unlock($1)", [gate + 2]);
  await granted;
  expect((await client.query("SELECT FROM fruit")).rowCount).toBe(0);
  await client.query("SELECT pg_advisory_unlock_all()");
  expect(await start).toEqual({ applied: [first, second] });
  expect((await client.query("SELECT FROM fruit")).rowCount).toBe(1);
});

/**
 * Has only the service's own limit on an answer, 9.5 s in which the process runs. The server's would go on while the machine stands
 * still.
 */
async function openPatient() {
  const service = openDatabase(database.connection, { poolSize: 1, onError() {} });
  onTestFinished(() => service.close());
  await service.query({ text: "SET statement_timeout = 0", values: [], rowMode: "array" });
  return service;
}

test("while a migration waits for a table that a long transaction reads, statements of the service are answered in time", async () => {
  await migration(first, "CREATE TABLE fruit (id int);");
  await apply();
  await migration(second, "ALTER TABLE fruit ADD name text;");
  await client.query("BEGIN; SELECT FROM fruit");
  await expect(apply({ lockTimeoutMs: 50 })).rejects.toThrow(
    `migration ${second} failed and was rolled back: canceling statement due to lock timeout`,
  );
  const start = apply();
  const service = await openPatient();
  const waiting = "SELECT FROM pg_locks WHERE relation = 'fruit'::regclass AND NOT granted";
  await vi.waitUntil(async () => (await client.query(waiting)).rowCount === 1, until);
  await service.query({ text: "INSERT INTO fruit VALUES (1)", values: [], rowMode: "array" });
  await client.query("COMMIT");
  expect(await start).toEqual({ applied: [second] });
});

test("a table that one of two starts yields is not waited for by the other at once", async () => {
  await migration(first, "CREATE TABLE fruit (id int);");
  await apply();
  await migration(second, "ALTER TABLE fruit ADD name text;");
  await client.query("BEGIN; SELECT FROM fruit");
  const starts = Promise.all([apply(), apply()]);
  const service = await openPatient();
  const waiting = async () => {
    const { rows } = await client.query(
      "SELECT pid FROM pg_locks WHERE relation = 'fruit'::regclass AND mode = 'AccessExclusiveLock' AND NOT granted",
    );
    return rows[0]?.pid;
  };
  const yielding = await vi.waitUntil(waiting, until);
  await vi.waitUntil(async () => (await waitingFor(prismaLock)) === 1, until);
  await service.query({ text: "INSERT INTO fruit VALUES (1)", values: [], rowMode: "array" });
  expect(await vi.waitUntil(waiting, until)).toBe(yielding);
  await client.query("COMMIT");
  const applied = (await starts).map((start) => start.applied);
  expect(applied.toSorted((a, b) => b.length - a.length)).toEqual([[second], []]);
});

test("a connection that ends between two statements is reported with what ended it", async () => {
  await migration(first, "CREATE TABLE fruit (id int);");
  await apply();
  await migration(second, "ALTER TABLE fruit ADD name text;");
  await client.query("BEGIN; SELECT FROM fruit");
  const yielding = Promise.withResolvers<void>();
  const start = applyMigrations(database.connection, {
    folder,
    onProgress: ({ step }) => step === "yields" && yielding.resolve(),
  });
  const failure = expect(start).rejects.toThrow("terminating connection due to administrator command");
  await yielding.promise;
  await client.query(
    `SELECT pg_terminate_backend(pid) FROM pg_locks
     WHERE locktype = 'advisory' AND objid = $1 AND granted
       AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`,
    [prismaLock],
  );
  await failure;
  await client.query("COMMIT");
  expect(await recorded()).toEqual([first]);
});

test.for([
  { name: "during a migration", waits: throughGate },
  {
    name: "at the commit of a migration",
    waits: `
      CREATE FUNCTION pass_gate() RETURNS trigger LANGUAGE plpgsql AS
        'BEGIN PERFORM pg_advisory_xact_lock(${gate}); RETURN NULL; END';
      CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON _prisma_migrations DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION pass_gate();`,
  },
])("a process killed $name leaves nothing behind, and the next start applies it", async ({ waits }) => {
  await migration(first, `CREATE TABLE fruit (id int); ${waits}`);
  await client.query("SELECT pg_advisory_lock($1)", [gate]);
  const module = path.join(import.meta.dirname, "../../src/storage/migrations.ts");
  const script = `
    import { applyMigrations } from ${JSON.stringify(module)};
    await applyMigrations(${JSON.stringify(database.url)}, { folder: ${JSON.stringify(folder)} });`;
  const child = spawn(process.execPath, ["--input-type=module", "-e", script], { stdio: "inherit" });
  const exit = once(child, "exit");
  await vi.waitUntil(async () => (await waitingFor(gate)) === 1, until);
  child.kill("SIGKILL");
  expect(await exit).toEqual([null, "SIGKILL"]);
  // The gate stays locked: the server itself notices that its client is gone.
  await vi.waitUntil(async () => (await waitingFor(gate)) === 0, until);
  expect(await tables()).toEqual([]);
  await client.query("SELECT pg_advisory_unlock($1)", [gate]);
  expect(await apply()).toEqual({ applied: [first] });
});

describe("a migration that fails", () => {
  test("is rolled back as a whole and reported by name and line; those before it stay applied", async () => {
    await migration(first, "CREATE TABLE fruit (id int);");
    await migration(second, "CREATE TABLE tree (id int);\nALTER TABLE tree\n  ADD broken nosuchtype;\n");
    await expect(apply()).rejects.toThrow(
      `migration ${second} failed and was rolled back: type "nosuchtype" does not exist (line 3)`,
    );
    expect(await tables()).toEqual(["_prisma_migrations", "fruit"]);
    expect(await recorded()).toEqual([first]);
    await migration(second, "CREATE TABLE tree (id int);");
    expect(await apply()).toEqual({ applied: [second] });
  });

  test("is reported with Postgres's hint", async () => {
    const full = "RAISE EXCEPTION 'wrote only 4096 of 8192 bytes' USING HINT = 'Check free disk space.'";
    await migration(first, `DO $$ BEGIN ${full}; END $$;`);
    await expect(apply()).rejects.toThrow("wrote only 4096 of 8192 bytes (Check free disk space.)");
  });

  test("on an empty database does not even leave the table of migrations", async () => {
    await migration(first, "CREATE TABLE fruit (id int); SELECT 1 / 0;");
    await expect(apply()).rejects.toThrow("division by zero");
    expect(await tables()).toEqual([]);
  });
});

test("a migration that ends its transaction is refused by name", async () => {
  await migration(first, "CREATE TABLE fruit (id int); COMMIT; BEGIN;");
  await expect(apply()).rejects.toThrow(`migration ${first} ends the transaction`);
  expect(await recorded().catch(() => [])).toEqual([]);
});

describe("an applied file", () => {
  beforeEach(async () => {
    await migration(first, "CREATE TABLE fruit (id int);\nCREATE TABLE tree (id int);\n");
    await apply();
  });

  test("that was edited is refused by name, and nothing is applied", async () => {
    await migration(first, "CREATE TABLE fruit (id bigint);\nCREATE TABLE tree (id int);\n");
    await migration(second, "CREATE TABLE bush (id int);");
    await expect(apply()).rejects.toThrow(`migration ${first} was edited after it was applied`);
    expect(await tables()).not.toContain("bush");
  });

  test("that was edited is refused even if nothing is pending", async () => {
    await migration(first, "CREATE TABLE fruit (id bigint);\n");
    await expect(apply()).rejects.toThrow(`migration ${first} was edited after it was applied`);
  });

  test("may have other line ends", async () => {
    await migration(second, "ALTER TABLE tree\r\n  ADD name text;\r\n");
    await migration("20260103000000_mixed", "CREATE TABLE bush (id int);\r\n\n");
    await apply();
    expect(await apply()).toEqual({ applied: [] });
    await migration(first, "CREATE TABLE fruit (id int);\r\nCREATE TABLE tree (id int);\r\n");
    await migration(second, "ALTER TABLE tree\n  ADD name text;\n");
    expect(await apply()).toEqual({ applied: [] });
  });
});

/** Makes the server answer like one of that version, with a function that takes precedence over Postgres's own. */
async function answerAs(number: number, version: string): Promise<void> {
  await client.query(`
    CREATE SCHEMA another;
    CREATE FUNCTION another.current_setting(name text) RETURNS text LANGUAGE sql AS $$
      SELECT CASE name WHEN 'server_version_num' THEN '${number}' WHEN 'server_version' THEN '${version}'
                       ELSE pg_catalog.current_setting(name) END $$`);
  const name = pg.escapeIdentifier(database.connection.database);
  await client.query(`ALTER DATABASE ${name} SET search_path = public, another, pg_catalog`);
}

describe("a server", () => {
  beforeEach(() => migration(first, "CREATE TABLE fruit (id int);"));

  test.for([
    { number: 140_009, version: "14.9 (Debian 14.9-1.pgdg120+1)", shown: "14.9" },
    { number: 149_999, version: "14.99", shown: "14.99" },
    { number: 90_624, version: "9.6.24", shown: "9.6.24" },
  ])("of version $version is refused with its version, and left unchanged", async ({
    number,
    version,
    shown,
  }) => {
    await answerAs(number, version);
    await expect(apply()).rejects.toThrow(`PostgreSQL ${shown} is too old: use 15 or newer`);
    expect(await tables()).toEqual([]);
  });

  test.for([
    { number: 150_000, version: "15.0" },
    { number: 190_000, version: "19beta1" },
  ])("of version $version is accepted", async ({ number, version }) => {
    await answerAs(number, version);
    expect(await apply()).toEqual({ applied: [first] });
  });
});

test("a _prisma_migrations table of another program is reported as such, and the database is left unchanged", async () => {
  await migration(first, "CREATE TABLE fruit (id int);");
  await client.query("CREATE TABLE _prisma_migrations (id int, name text)");
  await expect(apply()).rejects.toThrow(
    /^it is not a database of this service: its table _prisma_migrations /,
  );
  expect(await tables()).toEqual(["_prisma_migrations"]);
});

describe("migrations recorded by Prisma:", () => {
  const insert = (name: string, finished: string, rolledBack: string) =>
    client.query(
      `INSERT INTO _prisma_migrations (id, checksum, migration_name, started_at, finished_at, rolled_back_at)
       VALUES (gen_random_uuid()::text, 'x', $1, now(), ${finished}, ${rolledBack})`,
      [name],
    );

  beforeEach(async () => {
    await migration(first, "CREATE TABLE fruit (id int);");
    await apply();
    await migration(second, "CREATE TABLE tree (id int);");
  });

  test("a failed one stops the start with its name", async () => {
    await insert(second, "NULL", "NULL");
    await expect(apply()).rejects.toThrow(`migration ${second} is recorded as failed`);
    expect(await tables()).not.toContain("tree");
  });

  test("one that was rolled back is applied again", async () => {
    await insert(second, "NULL", "now()");
    expect(await apply()).toEqual({ applied: [second] });
  });

  test("one of a newer version does not stop an older service", async () => {
    await insert("29990101000000_newer", "now()", "NULL");
    expect(await apply()).toEqual({ applied: [second] });
    expect(await apply()).toEqual({ applied: [] });
  });
});

const all = path.resolve("prisma/migrations");

/** The database as the version before a migration left it. */
async function applyThoseBefore(name: string): Promise<void> {
  for (const one of await readdir(all))
    if (one < name) await cp(path.join(all, one), path.join(folder, one), { recursive: true });
  await apply();
}

const upgrade = () => applyMigrations(database.connection, { folder: all });

test("a start that waits, or whose migration takes long, says so in its log", async () => {
  const delayed = "20261127150000_webhook_set_at";
  await applyThoseBefore(delayed);
  await client.query("SELECT pg_advisory_lock($1)", [prismaLock]);
  const file = path.join(folder, "log");
  const start = startProcess({ DATABASE_URL: database.url }, { file });
  const logged = async (line: object) => {
    const lines = (await readFile(file, "utf8").catch(() => "")).split("\n").filter(Boolean);
    expect(lines.map((text) => JSON.parse(text))).toContainEqual(expect.objectContaining(line));
  };
  const says = (line: object) =>
    vi.waitFor(() => logged({ level: 30, seconds: expect.any(Number), ...line }), until);

  await says({ msg: "another process migrates the database: this one waits for it" });
  await client.query("BEGIN; SELECT FROM webhook_configuration");
  await client.query("SELECT pg_advisory_unlock($1)", [prismaLock]);
  await says({ migration: delayed, msg: "a migration is in progress" });
  await says({
    migration: delayed,
    msg: "others use a table that a migration needs: it lets them finish, and is then applied again",
  });
  await client.query("COMMIT");
  await says({ migration: delayed, msg: "a migration was applied" });
  (await start).child.kill();
  await (await start).ended();
});

describe("the index of deliveries by state", () => {
  const [made, dropped] = [
    "20261126020000_deliveries_by_state",
    "20261126030000_deliveries_by_version_dropped",
  ];

  beforeEach(async () => {
    await applyThoseBefore(made);
    await client.query(`
      SET session_replication_role = replica;
      INSERT INTO webhook_delivery (verification_id, webhook_configuration_id, state, attempts)
      SELECT gen_random_uuid(), gen_random_uuid(), 'delivered', 1 FROM generate_series(1, 20000)`);
  });

  const indexes = async () => {
    const { rows } = await client.query(
      "SELECT indexrelid::regclass::text AS name FROM pg_index WHERE indrelid = 'webhook_delivery'::regclass AND indisvalid",
    );
    return rows.map(({ name }) => name);
  };
  const byState = "webhook_delivery_in_state";

  test("is created while workers keep claiming deliveries, without a deadlock", async () => {
    const working = openDatabase(database.connection, { poolSize: 2, onError() {} });
    onTestFinished(() => working.close());
    const { claim } = createWebhookDeliveries(working, { onDisabled() {} });
    const room = { limit: 9, quickLimit: 9, slowLimit: 9, slowFirstLimit: 9, perEndpoint: 9, endpoints: [] };
    let isOver = false;
    const claiming = [0, 1].map(async () => {
      while (!isOver) await claim(room);
    });
    await claim(room);
    expect(await upgrade()).toEqual({ applied: expect.arrayContaining([made, dropped]) });
    isOver = true;
    await Promise.all(claiming);
    expect(await indexes()).toContain(byState);
    await working.close();
    const { rows } = await client.query(
      "SELECT deadlocks::int FROM pg_stat_database WHERE datname = current_database()",
    );
    expect(rows).toEqual([{ deadlocks: 0 }]);
  });

  test("is created again if an earlier attempt failed", async () => {
    await client.query(`
      CREATE INDEX ${byState} ON webhook_delivery (webhook_configuration_id, state, verification_id) WHERE (attempts >= 0);
      UPDATE pg_index SET indisvalid = false WHERE indexrelid = '${byState}'::regclass`);
    await upgrade();
    expect(await indexes()).toContain(byState);
  });
});

test("what the query planner knew of phones, texts and windows is forgotten, and not learnt again", async () => {
  await applyThoseBefore("20261127200000_no_statistics_of_personal_data");
  const value = "01012345678";
  const stored = async () => {
    const { rows } = await client.query(
      `SELECT tablename || '.' || attname AS name FROM pg_stats
       WHERE schemaname = 'public' AND concat(most_common_vals, histogram_bounds) LIKE '%' || $1 || '%' ORDER BY 1`,
      [value],
    );
    return rows.map(({ name }) => name);
  };
  await client.query(`
    SET session_replication_role = replica;
    INSERT INTO verification (id, project_id, environment, mode, status, phone, verified_at, expected_phone, client_reference,
      state, destination, sms_text, created_at, expires_at)
    SELECT gen_random_uuid(), gen_random_uuid(), 'live', 'match', 'verified', '${value}', now(), '${value}', '', '', '', '', now(),
      now() + interval '1 minute' FROM generate_series(1, 2);
    INSERT INTO live_code (destination, code, code_format, verification_id, expires_at, expected_phone)
    SELECT '', n, 'numeric', gen_random_uuid(), now(), '${value}' FROM generate_series(1, 2) n;
    INSERT INTO idempotency_record (project_id, environment, key, request_digest, verification_id, verification_url, created_at)
    SELECT gen_random_uuid(), 'live', '${value}', '${value}', gen_random_uuid(), '${value}', now() FROM generate_series(1, 2);
    INSERT INTO inbound_message (source, message_id, sender, destination, text, ingested_at, outcome, duplicate)
    SELECT '', n, '${value}', '${value}', '${value}', now(), 'no_match', false FROM generate_series(1, 2) n;
    INSERT INTO inbound_sender (environment, phone, miss_times) VALUES ('live', '${value}', '{}'), ('test', '${value}', '{}');
    INSERT INTO webhook_attempt (verification_id, number, started_at, answer)
    SELECT gen_random_uuid(), 1, now(), '${value}' FROM generate_series(1, 2);
    ANALYZE`);
  expect(await stored()).toHaveLength(10);
  await upgrade();
  expect(await stored()).toEqual([]);
  await client.query("ANALYZE");
  expect(await stored()).toEqual([]);
});
