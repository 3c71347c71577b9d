import { afterAll, expect, test, vi } from "vitest";
import { type DatabaseProxy, startDatabaseProxy } from "../faults/database-proxy.ts";
import { merchant } from "../gateway/merchant.ts";
import { startTestService } from "../harness/service.ts";
import { startProcess } from "../ops/service-process.ts";
import { untilWaiting } from "./barrier.ts";

const beside = await startTestService({ ROLES: "api" });
const { liveKey } = await beside.createProject();

async function proxyTo(databaseUrl: string): Promise<{ proxy: DatabaseProxy; url: string }> {
  const url = new URL(databaseUrl);
  const proxy = await startDatabaseProxy({ host: url.hostname, port: Number(url.port) });
  afterAll(() => proxy.close());
  url.host = `127.0.0.1:${proxy.port}`;
  return { proxy, url: url.href };
}

test.for([
  { name: "a worker in the midst of retention", roles: "worker", waiting: 1, known: true },
  {
    name: "a process that does everything, with a call under way",
    roles: "api,worker",
    waiting: 2,
    known: true,
  },
  { name: "one that has not found out yet", roles: "api,worker", waiting: 2, known: false },
])("$name ends with 0 though the database answers nothing any more, and tells whoever waits", async ({
  roles,
  waiting,
  known,
}) => {
  const { proxy, url } = await proxyTo(beside.databaseUrl);
  // What has to wait for it is under way when the database falls silent.
  const holder = await beside.db.connect();
  await holder.query("BEGIN; LOCK TABLE idempotency_record IN ACCESS EXCLUSIVE MODE");
  try {
    const service = await startProcess({ DATABASE_URL: url, ROLES: roles });
    const call = roles === "worker" ? undefined : merchant(service.httpUrl, liveKey).create();
    await untilWaiting(beside.db, waiting);
    await proxy.turn("black hole");
    // Whatever looks into the database now and then has come to do so.
    if (known) {
      await vi.waitUntil(async () => (await fetch(`${service.opsUrl}/readyz`)).status === 503, {
        timeout: 45_000,
      });
    }
    service.child.kill("SIGTERM");
    const answer = await call;
    if (answer) expect([answer.status, answer.body.error.code]).toEqual([503, "service_unavailable"]);
    expect(await service.ended()).toBe(0);
  } finally {
    holder.release(true);
  }
});
