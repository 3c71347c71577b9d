import { expect, test } from "vitest";
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
