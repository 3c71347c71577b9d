import { randomUUID } from "node:crypto";
import { expect, onTestFinished, test, vi } from "vitest";
import { parseConfig } from "../../src/config.ts";
import { createLog } from "../../src/log/log.ts";
import { createReadiness } from "../../src/ops/readiness.ts";
import { startService } from "../../src/service.ts";
import { startTestService } from "../harness/service.ts";

test("concurrent readiness checks share one query to the database, and a later check makes another", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout"] });
  onTestFinished(() => void vi.useRealTimers());
  let looks = 0;
  let state: "usable" | "database_away" = "usable";
  const readiness = createReadiness({
    phase: () => "serving",
    checkDatabase: async () => {
      looks++;
      return state;
    },
  });
  expect(await Promise.all(Array.from({ length: 1_000 }, readiness))).toEqual(
    Array.from({ length: 1_000 }, () => "ready"),
  );
  state = "database_away";
  expect([await readiness(), looks]).toEqual(["ready", 1]);
  vi.advanceTimersByTime(250);
  expect([await readiness(), looks]).toEqual(["database_away", 2]);
});

test("a process that is starting or stopping reports that without querying the database", async () => {
  for (const phase of ["starting", "stopping"] as const) {
    const readiness = createReadiness({
      phase: () => phase,
      checkDatabase: () => Promise.reject(new Error("nobody is to look")),
    });
    expect(await readiness()).toBe(phase);
  }
});

test("a process whose login the database refuses is not ready, says so, and logs the reason once", async () => {
  const service = await startTestService({ ROLES: "worker" });
  const login = `refused_${randomUUID().slice(0, 8)}`;
  await service.db.query(`CREATE ROLE ${login} LOGIN SUPERUSER PASSWORD 'known'`);
  onTestFinished(() => service.db.query(`DROP ROLE ${login}`).then(() => {}));
  const written: string[] = [];
  const output = { waitingBytes: 0, droppedLines: 0, end: async () => {} };
  const log = createLog("info", { ...output, write: (lines) => void written.push(lines) });
  const address = Object.assign(new URL(service.databaseUrl), { username: login, password: "known" });
  const settings = parseConfig({ OPS_PORT: "0", ROLES: "worker", DATABASE_URL: address.href });
  const refused = await startService(settings, log);
  onTestFinished(() => refused.close());
  const ready = async () => (await fetch(`http://${refused.addresses.ops}/readyz`)).text();
  expect(await ready()).toBe("ready\n");
  await service.db.query(`ALTER ROLE ${login} NOLOGIN`);
  await service.db.query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", [
    login,
  ]);
  await expect
    .poll(ready)
    .toBe("not ready: the database refuses the login or the check: the log has its reason\n");
  const reasons = () =>
    written
      .join("")
      .split("\n")
      .filter((line) => line.includes('"not ready'))
      .map((line) => JSON.parse(line));
  await expect.poll(reasons).toMatchObject([{ level: 40, err: { code: "28000" } }]);
  await service.db.query(`ALTER ROLE ${login} LOGIN`);
  await expect.poll(ready).toBe("ready\n");
  expect(reasons()).toHaveLength(1);
});

test("a process is not ready while a migration, or every table, is missing from its database, and says so", async () => {
  const service = await startTestService({ ROLES: "api" });
  const ready = async () => {
    const response = await fetch(`${service.opsUrl}/readyz`);
    return [response.status, (await response.text()).trim()];
  };
  const yes = [200, "ready"];
  const no = [503, "not ready: the database takes no writes, or lacks tables of this version"];
  expect(await ready()).toEqual(yes);
  const newest = "(SELECT max(migration_name) FROM _prisma_migrations)";
  await service.db.query(
    `CREATE TABLE put_aside AS SELECT * FROM _prisma_migrations WHERE migration_name = ${newest}`,
  );
  await service.db.query(`DELETE FROM _prisma_migrations WHERE migration_name = ${newest}`);
  await expect.poll(ready).toEqual(no);
  await service.db.query("INSERT INTO _prisma_migrations TABLE put_aside");
  await expect.poll(ready).toEqual(yes);
  await service.db.query("ALTER TABLE _prisma_migrations RENAME TO put_elsewhere");
  await expect.poll(ready).toEqual(no);
});
