import { randomBytes } from "node:crypto";
import { expect, onTestFinished, test } from "vitest";
import { merchant } from "../gateway/merchant.ts";
import { startTestService, type TestService } from "../harness/service.ts";
import { createPending } from "./pending.ts";
import { smsSource } from "./sms-source.ts";

test("the service works in a schema of its own that the database's URL names", async () => {
  const elsewhere = await startTestService();
  await elsewhere.db.query("CREATE SCHEMA phoneproof");
  const url = new URL(elsewhere.databaseUrl);
  url.searchParams.set("options", "-c search_path=phoneproof");
  const service = await elsewhere.startAnother({ DATABASE_URL: url.href });

  const project = await service.createProject();
  const shop = merchant(service.httpUrl, project.liveKey);
  const { id, to, text } = await createPending(shop);
  expect(await smsSource(service).send({ to, text })).toMatchObject({ outcome: "VERIFIED" });
  expect((await shop.read(id)).body.status).toBe("verified");
  const { rows } = await elsewhere.db.query(
    "SELECT (SELECT count(*)::int FROM phoneproof.project) AS own, (SELECT count(*)::int FROM public.project) AS other",
  );
  expect(rows).toEqual([{ own: 1, other: 0 }]);
});

test.for([
  { name: "does not exist", searchPath: "missing" },
  // Postgres does not tell these two cases apart.
  { name: "the role may not use", searchPath: "closed" },
])("a search path whose only schema $name ends the start with what to do", async ({ searchPath }) => {
  const elsewhere = await startTestService();
  const { db } = elsewhere;
  await db.query("CREATE SCHEMA closed");
  const url = await createLogin(elsewhere);
  url.searchParams.set("options", `-c search_path=${searchPath}`);
  await expect(elsewhere.startAnother({ DATABASE_URL: url.href })).rejects.toThrow(
    /^DATABASE_URL: .* no schema has been selected to create in: .* none that exists and that its role may use; use CREATE SCHEMA .* or GRANT ALL ON SCHEMA/,
  );
});

test("a role that may not create tables ends the start with what to do, if migrations are missing", async () => {
  const elsewhere = await startTestService();
  const { db } = elsewhere;
  const url = await createLogin(elsewhere);
  await db.query(`GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO ${url.username}`);
  const service = await elsewhere.startAnother({ DATABASE_URL: url.href });
  expect((await fetch(`${service.opsUrl}/readyz`)).status).toBe(200);
  await service.close();

  await db.query("DELETE FROM _prisma_migrations WHERE migration_name LIKE '20261127%'");
  await expect(elsewhere.startAnother({ DATABASE_URL: url.href })).rejects.toThrow(
    /^DATABASE_URL: .* permission denied for schema public: migrations are missing, and its role may not create tables/,
  );
});

test.for([
  {
    name: "a role that may not use a table that another role's migration has added",
    statement: "REVOKE ALL ON event",
    denied: "event",
  },
  {
    name: "a role that may only read",
    statement: "REVOKE INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public",
    denied: "api_key, audit_entry, carrier_statistics, 24 more",
  },
  {
    name: "a role that may not even see which migrations are applied",
    statement: "REVOKE ALL ON ALL TABLES IN SCHEMA public",
    denied: "_prisma_migrations",
  },
])("$name ends the start with the statement that allows it", async ({ statement, denied }) => {
  const elsewhere = await startTestService();
  const { db } = elsewhere;
  const url = await createLogin(elsewhere);
  await db.query(`GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO ${url.username}`);
  await db.query(`${statement} FROM ${url.username}`);
  const start = () => elsewhere.startAnother({ DATABASE_URL: url.href });
  const { message } = await start().then(
    () => ({ message: "it has started" }),
    (error: Error) => error,
  );
  expect(message).toContain(`its role ${url.username} may not read and write all of its tables (${denied}):`);

  await db.query(/GRANT .*/.exec(message)?.[0] ?? "");
  expect((await fetch(`${(await start()).opsUrl}/readyz`)).status).toBe(200);
});

test("a role that may do less with single tables, such as only add to the audit log, may start the service", async () => {
  const elsewhere = await startTestService();
  const { db } = elsewhere;
  const url = await createLogin(elsewhere);
  await db.query(`GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO ${url.username}`);
  await db.query(`REVOKE UPDATE, DELETE ON audit_entry FROM ${url.username}`);
  await db.query(`REVOKE INSERT, UPDATE, DELETE ON _prisma_migrations FROM ${url.username}`);
  const service = await elsewhere.startAnother({ DATABASE_URL: url.href });
  await service.createProject();
  expect((await fetch(`${service.opsUrl}/readyz`)).status).toBe(200);
});

/** The database's URL for a new role without privileges, which lasts until the end of the test. */
async function createLogin({ db, databaseUrl }: TestService): Promise<URL> {
  const role = `tables_${randomBytes(6).toString("hex")}`;
  await db.query(`CREATE ROLE ${role} LOGIN PASSWORD 'known'`);
  onTestFinished(async () => {
    await db.query(`DROP OWNED BY ${role}`);
    await db.query(`DROP ROLE ${role}`);
  });
  const url = new URL(databaseUrl);
  url.username = role;
  url.password = "known";
  return url;
}
