/** A process that is suspended, as when a container is frozen or a laptop sleeps, and then continues. */

import { setTimeout as delay } from "node:timers/promises";
import { createClient } from "@connectrpc/connect";
import { expect, test, vi } from "vitest";
import { decodeId } from "../../src/core/ids.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import {
  VerificationService,
  VerificationStatus,
} from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { WebhookDeliveryState } from "../../src/gen/proto/phoneproof/v1/webhook_pb.ts";
import { merchant } from "../gateway/merchant.ts";
import { startCuttableProxy } from "../harness/cuttable-proxy.ts";
import { transportTo } from "../harness/grpc-transport.ts";
import { startTestService } from "../harness/service.ts";
import { startProcess } from "../ops/service-process.ts";
import { startReceiver } from "../webhooks/receiver.ts";
import { attempted, deliveryWhen, openShop } from "../webhooks/shop.ts";
import { untilWaiting } from "./barrier.ts";

const beside = await startTestService({ ROLES: "api", WEBHOOK_ALLOW_PRIVATE: "true" });

/** Suspends the process, and lets it continue when `meanwhile` is done. */
async function suspended(pid: number | undefined, meanwhile: () => Promise<unknown>): Promise<void> {
  if (pid === undefined) throw new Error("the process has not started");
  process.kill(pid, "SIGSTOP");
  try {
    await meanwhile();
  } finally {
    process.kill(pid, "SIGCONT");
  }
}

test("calls whose statement was answered while their process was suspended get its answer, and so do calls behind them", async () => {
  const { liveKey } = await beside.createProject({ rateLimitPerMinute: 1_000_000 });
  const proxy = await startCuttableProxy(beside.databaseUrl);
  const paused = await startProcess({ DATABASE_URL: proxy.databaseUrl, ROLES: "api" });
  const shop = merchant(paused.httpUrl, liveKey);
  const { id } = (await merchant(beside.httpUrl, liveKey).create()).body;
  // Opens the connections that the calls below use: the process need not accept them before it reads the calls. By reads: behind
  // the statements below none would be sent if an earlier creation had been slow.
  await Promise.all(Array.from({ length: 80 }, () => shop.read(id)));
  const holder = await beside.db.connect();
  const calls: ReturnType<typeof shop.create>[] = [];
  const callMore = (count: number) => {
    for (let call = 0; call < count; call++) calls.push(shop.create());
  };
  const statements = () => proxy.timesSent("\0create_new\0");
  try {
    await holder.query("BEGIN; SELECT FROM usage FOR UPDATE");
    const before = statements();
    callMore(1);
    await untilWaiting(beside.db, 1);
    // The second statement is sent behind the first. The other calls wait for both.
    callMore(50);
    await vi.waitUntil(() => statements() === before + 2, { timeout: 45_000, interval: 5 });
    await suspended(paused.child.pid, async () => {
      callMore(29);
      // The process is to find these calls before the answer.
      await delay(500);
      await holder.query("ROLLBACK");
      // More than twice the time after which calls that wait are refused.
      await delay(9_000);
    });
  } finally {
    holder.release(true);
  }
  const statuses = (await Promise.all(calls)).map(({ status }) => status);
  expect(statuses.filter((status) => status !== 201)).toEqual([]);
});

test("a call whose database was suspended with its process waits for its answer", async () => {
  const { liveKey } = await beside.createProject();
  const proxy = await startCuttableProxy(beside.databaseUrl);
  const paused = await startProcess({ DATABASE_URL: proxy.patientUrl, ROLES: "api" });
  const shop = merchant(paused.httpUrl, liveKey);
  await shop.create();
  const held = proxy.holdAnswerTo("\0create_new\0");
  const call = shop.create();
  await held;
  // Longer than a call may wait for its answer.
  await suspended(paused.child.pid, () => delay(15_000));
  // The process has continued, and found that its database does not answer yet.
  await fetch(`${paused.opsUrl}/healthz`);
  proxy.restore();
  expect((await call).status).toBe(201);
});

test("calls whose statement was answered while their process was suspended during its shutdown get its answer", async () => {
  const [{ liveKey }, { projectId }] = [await beside.createProject(), await beside.createProject()];
  const paused = await startProcess({ DATABASE_URL: beside.databaseUrl, ROLES: "api", LOG_LEVEL: "info" });
  const shop = merchant(paused.httpUrl, liveKey);
  const { id: verificationId } = (await shop.create()).body;
  // A process may answer before what it has written arrives here.
  const running = await vi.waitUntil(() => /^.*"grpc":.*\n/m.exec(paused.text())?.[0], { timeout: 45_000 });
  const { grpc } = JSON.parse(running);
  const verifications = createClient(VerificationService, transportTo(grpc, `Bearer ${liveKey}`));
  const projects = createClient(
    ProjectService,
    transportTo(grpc, "Bearer an-admin-token-that-is-long-enough"),
  );
  const holder = await beside.db.connect();
  try {
    await holder.query("BEGIN; SELECT FROM usage FOR UPDATE");
    const call = shop.create();
    const rpc = verifications.getVerification({ verificationId });
    await holder.query("SELECT FROM project WHERE id = $1 FOR UPDATE", [decodeId("prj_", projectId)]);
    const administrative = projects.updateProject({ projectId, name: "Renamed" });
    await untilWaiting(beside.db, 3);
    paused.child.kill("SIGTERM");
    await vi.waitUntil(() => paused.text().includes("SIGTERM"), { timeout: 45_000 });
    await suspended(paused.child.pid, async () => {
      await holder.query("ROLLBACK");
      // Longer than connections are kept open at a shutdown.
      await delay(7_000);
    });
    expect((await call).status).toBe(201);
    expect((await rpc).verification?.status).toBe(VerificationStatus.PENDING);
    expect((await administrative).project?.name).toBe("Renamed");
    expect(await paused.ended()).toBe(0);
  } finally {
    holder.release(true);
  }
});

test("a connection for notices that was probed just before its process was suspended is kept", async () => {
  const proxy = await startCuttableProxy(beside.databaseUrl);
  const paused = await startProcess({ DATABASE_URL: proxy.databaseUrl, ROLES: "api" });
  await proxy.holdAnswerTo("SELECT 1\0");
  await suspended(paused.child.pid, async () => {
    proxy.restore();
    await delay(3_000);
  });
  // Its next probe follows the answer to that one.
  const probes = proxy.timesSent("SELECT 1\0");
  await vi.waitUntil(() => proxy.timesSent("SELECT 1\0") > probes, { timeout: 45_000 });
  expect(paused.text()).not.toContain("LISTEN");
});

test("an endpoint's answer that arrived while the worker was suspended counts", async () => {
  const shop = await openShop(beside);
  const reached = Promise.withResolvers<void>();
  const answering = Promise.withResolvers<void>();
  const receiver = await startReceiver(async (response) => {
    reached.resolve();
    await answering.promise;
    response.writeHead(204).end();
  });
  await shop.setWebhook(receiver.url);
  const worker = await startProcess({
    DATABASE_URL: beside.databaseUrl,
    ROLES: "worker",
    WEBHOOK_ALLOW_PRIVATE: "true",
  });
  const id = await shop.event();
  await reached.promise;
  await suspended(worker.child.pid, async () => {
    answering.resolve();
    // Longer than an attempt may take.
    await delay(16_000);
  });
  const { state, attempts } = await deliveryWhen(beside, id, attempted(1));
  expect(attempts).toMatchObject([{ status: 204, error: "" }]);
  expect(state).toBe(WebhookDeliveryState.DELIVERED);
});
