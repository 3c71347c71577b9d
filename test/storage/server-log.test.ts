/** The operator is warned that the database writes phones into its log if it does so, and only then. */
import { mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import pg from "pg";
import { afterAll, beforeAll, expect, onTestFinished, test, vi } from "vitest";
import { type Database, openDatabase } from "../../src/storage/database.ts";
import {
  type EmbeddedPostgres,
  startEmbeddedPostgres,
} from "../../src/storage/embedded/embedded-postgres.ts";
import { readLeakingLogSettings } from "../../src/storage/server-log.ts";
import { createDatabase } from "../harness/database.ts";
import { startProcess } from "../ops/service-process.ts";

let dataDir: string;
let server: EmbeddedPostgres;
let superuser: pg.Client;

beforeAll(async () => {
  dataDir = await mkdtemp(path.join(os.tmpdir(), "phoneproof-server-log-"));
  server = await startEmbeddedPostgres({
    dataDir,
    transport: "tcp",
    settings: {
      logging_collector: "on",
      log_directory: "log",
      log_filename: "server.log",
      log_error_verbosity: "default",
      log_min_error_statement: "error",
      fsync: "off",
    },
  });
  superuser = new pg.Client({ ...server.connection, database: "postgres" });
  await superuser.connect();
  await superuser.query("CREATE ROLE service_login LOGIN PASSWORD 'known'");
  await superuser.query("CREATE DATABASE logged OWNER service_login");
});

afterAll(async () => {
  await superuser.end();
  await server.stop();
  await rm(dataDir, { recursive: true, force: true });
});

/** As opened by a service whose login has no special privileges. */
function openLogged(): Database {
  const login = { ...server.connection, user: "service_login", password: "known", database: "logged" };
  return openDatabase(login, { poolSize: 1, onError: () => {} });
}

let marks = 0;
let phones = 0;

/** All files of the server's log, once they contain everything logged so far. */
async function serverLog(formats: string): Promise<string> {
  const mark = `mark ${++marks}.`;
  await superuser.query(`DO $$ BEGIN RAISE LOG '${mark}'; END $$`);
  const folder = path.join(dataDir, "postgres/log");
  return vi.waitUntil(
    async () => {
      const files = await readdir(folder);
      const texts = await Promise.all(files.map((file) => readFile(path.join(folder, file), "utf8")));
      const written = texts.filter((text) => text.includes(mark)).length;
      return written >= formats.split(",").length && texts.join("\n");
    },
    { timeout: 45_000, interval: 20 },
  );
}

async function setDestination(formats: string): Promise<void> {
  await superuser.query(`ALTER SYSTEM SET log_destination = ${pg.escapeLiteral(formats)}`);
  await superuser.query("SELECT pg_reload_conf()");
  await vi.waitUntil(
    async () => (await superuser.query("SHOW log_destination")).rows[0]?.log_destination === formats,
    { timeout: 45_000, interval: 20 },
  );
}

test.for<{ destination: string; settings: string[]; expected: Record<string, string> | null }>([
  { destination: "stderr", settings: [], expected: { log_error_verbosity: "default" } },
  {
    destination: "stderr",
    settings: ["log_error_verbosity = verbose"],
    expected: { log_error_verbosity: "verbose" },
  },
  {
    destination: "stderr",
    settings: ["log_min_error_statement = panic"],
    expected: { log_error_verbosity: "default" },
  },
  { destination: "stderr", settings: ["log_error_verbosity = terse"], expected: null },
  {
    destination: "stderr",
    settings: ["log_error_verbosity = terse", "log_parameter_max_length_on_error = -1"],
    expected: null,
  },
  {
    destination: "stderr",
    settings: ["log_error_verbosity = terse", "log_statement = 'all'", "log_min_duration_statement = 0"],
    expected: null,
  },
  {
    destination: "csvlog",
    settings: ["log_error_verbosity = terse"],
    expected: { log_destination: "csvlog" },
  },
  { destination: "jsonlog", settings: [], expected: { log_destination: "jsonlog" } },
  {
    destination: "stderr,jsonlog",
    settings: [],
    expected: { log_destination: "stderr,jsonlog", log_error_verbosity: "default" },
  },
  { destination: "stderr,csvlog", settings: ["log_min_messages = log"], expected: null },
  { destination: "jsonlog", settings: ["log_min_messages = fatal"], expected: null },
  {
    destination: "csvlog",
    settings: ["log_min_messages = error"],
    expected: { log_destination: "csvlog" },
  },
])("logging to $destination with $settings, a refused row's phone is logged exactly if there is a warning: $expected", async ({
  destination,
  settings,
  expected,
}) => {
  await setDestination(destination);
  await superuser.query("ALTER DATABASE logged RESET ALL");
  for (const setting of settings) await superuser.query(`ALTER DATABASE logged SET ${setting}`);
  const database = openLogged();
  try {
    const phone = `0105555${String(++phones).padStart(4, "0")}`;
    await database.pool.query("CREATE TABLE IF NOT EXISTS sender (phone text PRIMARY KEY)");
    const insert = () => database.pool.query("INSERT INTO sender SELECT unnest($1::text[])", [[phone]]);
    await insert();
    await expect(insert()).rejects.toMatchObject({ code: "23505" });
    expect(await readLeakingLogSettings(database)).toEqual(expected);
    expect((await serverLog(destination)).includes(phone)).toBe(expected !== null);
  } finally {
    await database.close();
  }
});

test("the embedded server logs neither the values of a row that it refuses nor a statement that somebody types", async () => {
  const phone = "01055500119";
  const directory = await mkdtemp(path.join(os.tmpdir(), "phoneproof-server-log-"));
  onTestFinished(() => rm(directory, { recursive: true, force: true }));
  const embedded = await startEmbeddedPostgres({ dataDir: directory, transport: "tcp" });
  onTestFinished(() => embedded.stop());
  const client = new pg.Client({ ...embedded.connection, database: "postgres" });
  await client.connect();
  await client.query("CREATE TABLE taken (phone text PRIMARY KEY)");
  const insert = "INSERT INTO taken VALUES ($1)";
  await client.query(insert, [phone]);
  await expect(client.query(insert, [phone])).rejects.toThrow("duplicate key");
  await expect(client.query(`SELECT missing FROM taken WHERE phone = '${phone}'`)).rejects.toThrow("missing");
  await client.end();
  // Postgres has logged an error before it answers with it.
  const log = await readFile(path.join(directory, "postgres.log"), "utf8");
  expect(log).toContain("duplicate key");
  expect(log).toContain('column "missing" does not exist');
  expect(log).not.toContain(phone);
});

test("a login that is not a superuser can turn it off only after a grant", async () => {
  await superuser.query("ALTER DATABASE logged RESET ALL");
  const database = openLogged();
  const set = () => database.pool.query("ALTER DATABASE logged SET log_error_verbosity = terse");
  try {
    await expect(set()).rejects.toMatchObject({ code: "42501" });
    await superuser.query("GRANT SET ON PARAMETER log_error_verbosity TO service_login");
    await set();
  } finally {
    await database.close();
  }
});

test("a start warns in one line that names the setting, and not at all if the database is set correctly", async () => {
  const database = await createDatabase();
  const client = new pg.Client(database.connection);
  await client.connect();
  const started = async () => {
    const service = await startProcess({ DATABASE_URL: database.url });
    await vi.waitUntil(() => service.text().includes("phoneproof is running"), { timeout: 45_000 });
    service.child.kill("SIGTERM");
    await service.ended();
    return service
      .text()
      .split("\n")
      .filter((line) => line.includes("log_"));
  };
  try {
    const [line = "", ...more] = await started();
    expect(more).toEqual([]);
    expect(JSON.parse(line)).toMatchObject({
      level: 40,
      log_error_verbosity: "default",
      msg: expect.stringMatching(
        /complete phone numbers and codes .* log_error_verbosity: docs\/operations\.md, "What Postgres logs"/,
      ),
    });
    await client.query(
      `ALTER DATABASE ${pg.escapeIdentifier(database.connection.database)} SET log_error_verbosity = terse`,
    );
    expect(await started()).toEqual([]);
  } finally {
    await client.end();
    await database.drop();
  }
});
