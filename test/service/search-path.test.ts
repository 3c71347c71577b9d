import { randomBytes } from "node:crypto";
import { expect, onTestFinished, test } from "vitest";
import { merchant } from "../gateway/merchant.ts";
import { startTestService } from "../harness/service.ts";
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

test("a search path of which no schema exists ends the start with what to do", async () => {
  const elsewhere = await startTestService();
  const url = new URL(elsewhere.databaseUrl);
  url.searchParams.set("options", "-c search_path=missing");
  await expect(elsewhere.startAnother({ DATABASE_URL: url.href })).rejects.toThrow(
    /^DATABASE_URL: .* no schema has been selected to create in: none of its search_path exists; use CREATE SCHEMA/,
  );
});

test("a role that may not create tables ends the start with what to do, if migrations are missing", async () => {
  const elsewhere = await startTestService();
  const { db } = elsewhere;
  const role = `tables_${randomBytes(6).toString("hex")}`;
  await db.query(`CREATE ROLE ${role} LOGIN PASSWORD 'known'`);
  await db.query(`GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO ${role}`);
  onTestFinished(async () => {
    await db.query(`DROP OWNED BY ${role}`);
    await db.query(`DROP ROLE ${role}`);
  });
  const url = new URL(elsewhere.databaseUrl);
  url.username = role;
  url.password = "known";
  const service = await elsewhere.startAnother({ DATABASE_URL: url.href });
  expect((await fetch(`${service.opsUrl}/readyz`)).status).toBe(200);
  await service.close();

  await db.query("DELETE FROM _prisma_migrations WHERE migration_name LIKE '20261127%'");
  await expect(elsewhere.startAnother({ DATABASE_URL: url.href })).rejects.toThrow(
    /^DATABASE_URL: .* permission denied for schema public: migrations are missing, and its role may not create tables/,
  );
});
