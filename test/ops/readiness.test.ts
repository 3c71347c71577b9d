import { expect, onTestFinished, test, vi } from "vitest";
import { createReadiness } from "../../src/ops/readiness.ts";
import { startTestService } from "../harness/service.ts";

test("concurrent readiness checks share one query to the database, and a later check makes another", async () => {
  vi.useFakeTimers({ toFake: ["setTimeout"] });
  onTestFinished(() => void vi.useRealTimers());
  let looks = 0;
  let answers = true;
  const readiness = createReadiness({
    phase: () => "serving",
    reachesDatabase: async () => {
      looks++;
      return answers;
    },
  });
  expect(await Promise.all(Array.from({ length: 1_000 }, readiness))).toEqual(
    Array.from({ length: 1_000 }, () => "ready"),
  );
  answers = false;
  expect([await readiness(), looks]).toEqual(["ready", 1]);
  vi.advanceTimersByTime(250);
  expect([await readiness(), looks]).toEqual(["database_away", 2]);
});

test("a process that is starting or stopping reports that without querying the database", async () => {
  for (const phase of ["starting", "stopping"] as const) {
    const readiness = createReadiness({
      phase: () => phase,
      reachesDatabase: () => Promise.reject(new Error("nobody is to look")),
    });
    expect(await readiness()).toBe(phase);
  }
});

test("a process is not ready while a migration is missing from its database", async () => {
  const service = await startTestService({ ROLES: "api" });
  const ready = async () => (await fetch(`${service.opsUrl}/readyz`)).status;
  expect(await ready()).toBe(200);
  const newest = "(SELECT max(migration_name) FROM _prisma_migrations)";
  await service.db.query(
    `CREATE TABLE put_aside AS SELECT * FROM _prisma_migrations WHERE migration_name = ${newest}`,
  );
  await service.db.query(`DELETE FROM _prisma_migrations WHERE migration_name = ${newest}`);
  await expect.poll(ready).toBe(503);
  await service.db.query("INSERT INTO _prisma_migrations TABLE put_aside");
  await expect.poll(ready).toBe(200);
});
