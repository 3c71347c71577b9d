import { mkdtemp, rm } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { afterAll, expect, test, vi } from "vitest";
import { startServiceProcess } from "../faults/service-process.ts";
import { merchant } from "../gateway/merchant.ts";
import { startTestService } from "../harness/service.ts";
import { startProcess } from "../ops/service-process.ts";

const beside = await startTestService();
const { liveKey } = await beside.createProject();
const directory = await mkdtemp(path.join(os.tmpdir(), "phoneproof-draining-"));
const wrong: string[] = [];
const service = await startServiceProcess({
  name: "drained",
  environment: { DATABASE_URL: beside.databaseUrl, DRAIN_SECONDS: "10" },
  logFile: path.join(directory, "service.log"),
  onViolation: (text) => wrong.push(text),
});

afterAll(async () => {
  await service.stop();
  await rm(directory, { recursive: true });
});

test.for(["SIGINT", "SIGHUP"] as const)("%s ends a process as SIGTERM does", async (signal) => {
  const { child, httpUrl, opsUrl, ended } = await startProcess({
    DATABASE_URL: beside.databaseUrl,
    DRAIN_SECONDS: "0",
  });
  expect((await merchant(httpUrl, liveKey).create()).status).toBe(201);
  child.kill(signal);
  expect(await ended()).toBe(0);
  await expect(fetch(`${opsUrl}/readyz`)).rejects.toThrow();
});

test("on SIGTERM a process becomes unready, answers further requests with connection: close, and exits with 0", async () => {
  const life = await service.running();
  const shop = merchant(life.httpUrl, liveKey);
  expect((await fetch(`${life.opsUrl}/readyz`)).status).toBe(200);
  expect((await shop.create()).headers.get("connection")).toBe("keep-alive");

  const restarted = service.restart();
  const stopping = await vi.waitUntil(
    async () => {
      const answer = await fetch(`${life.opsUrl}/readyz`);
      return answer.status === 503 ? answer : undefined;
    },
    { timeout: 45_000, interval: 20 },
  );
  expect(await stopping.text()).toContain("stopping");
  const { status, headers } = await shop.create();
  expect([status, headers.get("connection")]).toEqual([201, "close"]);

  expect(await life.exited).toBe("it ended with exit code 0");
  await restarted;
  expect(wrong).toEqual([]);
});
