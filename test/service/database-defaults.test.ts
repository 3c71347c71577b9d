/** The service must not depend on the session defaults of the database, its server or the role. */

import { mkdtemp, rm } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { Code, createClient } from "@connectrpc/connect";
import pg from "pg";
import { afterAll, beforeAll, describe, expect, onTestFinished, test } from "vitest";
import { parseConfig } from "../../src/config.ts";
import { newCredential } from "../../src/core/credential.ts";
import { ApiKeyService } from "../../src/gen/proto/phoneproof/v1/api_key_pb.ts";
import { AuditService } from "../../src/gen/proto/phoneproof/v1/audit_pb.ts";
import { DestinationNumberService } from "../../src/gen/proto/phoneproof/v1/destination_number_pb.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import { Environment } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { createLog } from "../../src/log/log.ts";
import { openLogOutput } from "../../src/log/log-output.ts";
import { startService } from "../../src/service.ts";
import { startEmbeddedPostgres } from "../../src/storage/embedded/embedded-postgres.ts";
import { merchant } from "../gateway/merchant.ts";
import { createDatabase, openPool, setSessionDefaults, type TestDatabase } from "../harness/database.ts";
import { moveExpiry } from "../harness/expiry.ts";
import { transportTo } from "../harness/grpc-transport.ts";
import { startTestService } from "../harness/service.ts";
import { scrape } from "../ops/scrape.ts";
import { createPending } from "./pending.ts";
import { smsSource } from "./sms-source.ts";

const elsewhere = {
  timezone: "Asia/Seoul",
  datestyle: "German, DMY",
  array_nulls: "off",
  default_transaction_isolation: "serializable",
  synchronous_commit: "off",
};

function startOn(url: string, settings: Readonly<Record<string, string>> = {}) {
  const config = parseConfig({
    ...{ PORT: "0", GRPC_PORT: "0", OPS_PORT: "0", LOG_LEVEL: "silent" },
    DATABASE_URL: url,
    ...settings,
  });
  return startService(config, createLog("silent", openLogOutput()));
}

test("the service works the same with another default time zone, date style, isolation and durability, and without NULL in arrays", async () => {
  const before = await startTestService();
  await setSessionDefaults(
    { connectionString: before.databaseUrl, database: new URL(before.databaseUrl).pathname.slice(1) },
    elsewhere,
  );
  const service = await before.startAnother();

  const project = await service.createProject();
  const keys = service.client(ApiKeyService);
  const soon = { seconds: 3_600n, nanos: 0 };
  const { apiKey, secret } = await keys.createApiKey({
    projectId: project.projectId,
    environment: Environment.LIVE,
    expiresIn: soon,
  });
  const now = Math.floor(Date.now() / 1000);
  expect(Math.abs(Number(apiKey?.createdAt?.seconds) - now)).toBeLessThan(300);
  expect(Math.abs(Number(apiKey?.expiresAt?.seconds) - now - 3_600)).toBeLessThan(300);
  const { entries } = await service.client(AuditService).listAuditEntries({ projectId: project.projectId });
  for (const { occurredAt } of entries) {
    expect(Math.abs(Number(occurredAt?.seconds) - now)).toBeLessThan(300);
  }

  const shop = merchant(service.httpUrl, secret);
  const { id, to, text } = await createPending(shop);
  expect(await smsSource(service).send({ to, text })).toMatchObject({ outcome: "VERIFIED" });
  expect((await shop.read(id)).body.status).toBe("verified");
  const statuses = await Promise.all(Array.from({ length: 40 }, async () => (await shop.create()).status));
  expect(new Set(statuses)).toEqual(new Set([201]));
});

test("connections of a running service keep their settings when the server's configuration changes", async () => {
  const dataDir = await mkdtemp(path.join(os.tmpdir(), "phoneproof-reload-"));
  onTestFinished(() => rm(dataDir, { recursive: true, force: true }));
  const server = await startEmbeddedPostgres({ dataDir, transport: "tcp", settings: { fsync: "off" } });
  onTestFinished(() => server.stop());
  const { host, port, user, password, database } = server.connection;
  const url = `postgres://${user}:${password}@${host}:${port}/${database}`;
  const adminToken = newCredential("svc");
  const service = await startOn(url, { PHONEPROOF_ADMIN_TOKEN: adminToken });
  onTestFinished(() => service.close());
  const db = new pg.Client({ connectionString: url });
  await db.connect();
  onTestFinished(() => db.end());
  const names = Object.keys(elsewhere);
  // The only way to look at the settings of another session.
  await db.query(`
    CREATE TABLE seen (at serial, settings jsonb);
    CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
      INSERT INTO seen (settings)
        SELECT jsonb_object_agg(lower(name), setting) FROM pg_settings WHERE lower(name) IN ('${names.join("', '")}');
      RETURN NULL;
    END $$;
    CREATE TRIGGER see AFTER INSERT ON project EXECUTE FUNCTION see();
  `);
  const projects = createClient(ProjectService, transportTo(service.addresses.grpc, `Bearer ${adminToken}`));

  await projects.createProject({ name: "Before" });
  for (const [name, value] of Object.entries(elsewhere)) {
    await db.query(`ALTER SYSTEM SET ${name} = '${value}'`);
  }
  await db.query("SELECT pg_reload_conf()");
  const current = async (name: string) =>
    (await db.query("SELECT current_setting($1) AS value", [name])).rows[0].value;
  await expect.poll(() => current("synchronous_commit")).toBe("off");
  const { project } = await projects.createProject({ name: "After" });

  const { rows } = await db.query("SELECT settings FROM seen ORDER BY at");
  const [before, after] = rows.map(({ settings }) => settings);
  expect(Object.keys(before).sort()).toEqual(names.sort());
  expect(after).toEqual(before);
  expect(Math.abs(Number(project?.createdAt?.seconds) - Date.now() / 1000)).toBeLessThan(300);
});

/** Starts the service on the database, creates a verification, and ends the service once it is over by itself. */
async function expireOn({ url, connection }: TestDatabase): Promise<void> {
  const service = await startTestService({ DATABASE_URL: url });
  const { project } = await service.client(ProjectService).createProject({ name: "Shop" });
  await service
    .client(DestinationNumberService)
    .addDestinationNumber({ number: "16661234", environment: Environment.LIVE });
  const { secret } = await service
    .client(ApiKeyService)
    .createApiKey({ projectId: project?.id ?? "", environment: Environment.LIVE });
  await createPending(merchant(service.httpUrl, secret));
  const db = openPool({ ...connection, options: "-c datestyle=ISO" });
  const statuses = async () =>
    (await db.query("SELECT status FROM verification")).rows.map(({ status }) => status);
  await moveExpiry(db, { expiresAt: "now()", where: "true" });
  await expect.poll(statuses).toEqual(["expired"]);
  await db.end();
  await service.close();
}

test("verifications expire on a new database with another time zone and date style", async () => {
  const database = await createDatabase({ empty: true });
  await setSessionDefaults(database.connection, elsewhere);
  await expireOn(database);
  await database.drop();
});

test("verifications expire after the upgrade of a database that was installed with another date style", async () => {
  const database = await createDatabase();
  const db = openPool(database.connection);
  await db.query(
    "UPDATE retention_progress SET done_up_to = '27.11.2026 20:06:14.9 KST' WHERE task = 'expire'",
  );
  await db.query("DELETE FROM _prisma_migrations WHERE migration_name = '20261127110000_expiry_progress'");
  await db.end();
  await expireOn(database);
  await database.drop();
});

test("the service's connections use its own application names and timeouts, not those of the URL", async () => {
  const { connection, url, drop } = await createDatabase();
  await setSessionDefaults(connection, elsewhere);
  const service = await startOn(`${url}?application_name=myapp&statement_timeout=1`);
  const client = new pg.Client({ ...connection, application_name: "looking" });
  await client.connect();
  const { rows } = await client.query(
    "SELECT DISTINCT application_name AS name FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY 1",
  );
  expect(rows.map(({ name }) => name)).toEqual(["phoneproof", "phoneproof-notices"]);
  await client.end();
  await service.close();
  await drop();
});

describe("behind a pooler", () => {
  let database: TestDatabase;
  beforeAll(async () => {
    database = await createDatabase();
  });
  afterAll(() => database.drop());
  const administer = async (statement: string) => {
    const client = new pg.Client(database.connection);
    await client.connect();
    await client.query(statement);
    await client.end();
  };
  const start = () => startOn(database.url, { DATABASE_PREPARED_STATEMENTS: "false" });

  test.for(
    Object.entries(elsewhere),
  )("an unsuitable session default of the database ends the start: %s = %s", async ([name, value]) => {
    await setSessionDefaults(database.connection, { [name]: value });
    onTestFinished(() => administer(`ALTER DATABASE ${database.connection.database} RESET ${name}`));
    await expect(start()).rejects.toThrow(
      new RegExp(`^DATABASE_URL: .* ${name} = '${value}': run ALTER DATABASE … SET ${name} = `),
    );
  });

  test("the error about a session default says where it is set", async () => {
    const { user, database: name } = database.connection;
    const role = `ALTER ROLE ${user} IN DATABASE ${name}`;
    await administer(`${role} SET timezone = 'Asia/Seoul'`);
    onTestFinished(() => administer(`${role} RESET timezone`));
    await expect(start()).rejects.toThrow(
      "start with timezone = 'Asia/Seoul': run ALTER ROLE … IN DATABASE … SET timezone = 'UTC'",
    );
  });
});

test("a read-only database ends the start; one that becomes read-only makes a process unready and counts as down", async () => {
  const service = await startTestService();
  const database = new URL(service.databaseUrl).pathname.slice(1);
  const isReady = async () => (await fetch(`${service.opsUrl}/readyz`)).status;
  const isUp = async () => (await scrape(service.opsUrl)).sum("phoneproof_database_up");
  expect([await isReady(), await isUp()]).toEqual([200, 1]);
  await setSessionDefaults(
    { connectionString: service.databaseUrl, database },
    { default_transaction_read_only: "on" },
  );
  await expect(service.startAnother()).rejects.toThrow(
    /^DATABASE_URL: .* it is read-only: it is a standby, or/,
  );
  await service.db.query(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE 'phoneproof%'",
  );
  await expect.poll(isReady).toBe(503);
  await expect.poll(isUp, { interval: 250 }).toBe(0);
  await service.db.query(
    `BEGIN READ WRITE; ALTER DATABASE ${database} RESET default_transaction_read_only; COMMIT`,
  );
  await service.db.query(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name LIKE 'phoneproof%'",
  );
  await expect.poll(isReady).toBe(200);
  await expect.poll(isUp, { interval: 250 }).toBe(1);
});

test("calls that a transaction timeout of the database ends get 503, service_unavailable", async () => {
  const service = await startTestService();
  const shop = merchant(service.httpUrl, (await service.createProject()).liveKey);
  await createPending(shop);
  const { databaseUrl: connectionString } = service;
  const database = new URL(connectionString).pathname.slice(1);
  const db = openPool({ connectionString, options: "-c transaction_timeout=0" });
  onTestFinished(() => db.end());
  const endConnections = () =>
    db.query(
      "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'phoneproof'",
    );
  /** How many sessions a fatal error has ended, as this timeout does. */
  const ended = async (): Promise<number> =>
    (await db.query("SELECT sessions_fatal::int FROM pg_stat_database WHERE datname = current_database()"))
      .rows[0].sessions_fatal;
  const holder = await db.connect();
  await holder.query("BEGIN; LOCK TABLE verification, project IN ACCESS EXCLUSIVE MODE");
  await setSessionDefaults({ connectionString, database }, { transaction_timeout: "100ms" });
  await endConnections();

  const beforeCreation = await ended();
  const { status, body } = await shop.create();
  expect([status, body.error?.code]).toEqual([503, "service_unavailable"]);
  await expect.poll(ended).toBeGreaterThan(beforeCreation);
  const beforeProject = await ended();
  await expect(service.client(ProjectService).createProject({ name: "Shop" })).rejects.toMatchObject({
    code: Code.Unavailable,
  });
  await expect.poll(ended).toBeGreaterThan(beforeProject);

  // On a slow machine the timeout would end calls that wait for nothing, too.
  await holder.query(`ALTER DATABASE ${database} RESET transaction_timeout; COMMIT`);
  holder.release();
  await endConnections();
  expect((await createPending(shop)).id).toMatch(/^vrf_/);
});
