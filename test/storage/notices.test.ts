import pg from "pg";
import { expect, onTestFinished, test, vi } from "vitest";
import { createNotices } from "../../src/storage/notices.ts";
import { startCuttableProxy } from "../harness/cuttable-proxy.ts";
import { createDatabase } from "../harness/database.ts";

test("a connection that is silent is asked once, however long that lasts", async () => {
  const own = await createDatabase();
  const proxy = await startCuttableProxy(own.url);
  const administrator = new pg.Client({ ...own.connection, database: "postgres" });
  await administrator.connect();
  const errors: unknown[] = [];
  const notices = createNotices(
    { connectionString: proxy.databaseUrl },
    {
      onTransition() {},
      onHint() {},
      onDirectoryChange() {},
      onGap() {},
      onError: (error) => errors.push((error as Error).message),
    },
  );
  onTestFinished(async () => {
    await notices.stop();
    await administrator.end();
    await own.drop();
  });
  const isAsked = proxy.holdAnswerTo("SELECT 1");
  await notices.start();
  await isAsked;
  // So that no other connection takes its place.
  await administrator.query(`ALTER DATABASE ${own.connection.database} ALLOW_CONNECTIONS false`);
  const silent = () => errors.filter((message) => message === "the database does not answer on it").length;
  await vi.waitUntil(() => silent() === 3, { timeout: 45_000, interval: 5 });
  const restoredAt = performance.now();
  proxy.restore();
  await vi.waitUntil(() => proxy.timesSent("SELECT 1") === 3, { timeout: 45_000, interval: 5 });
  // Each is sent half a second after the answer to the one before.
  expect(performance.now() - restoredAt).toBeGreaterThan(490);
});
