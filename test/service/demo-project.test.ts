/** The project that a start makes for first-time users, in the embedded database. */
import { readFileSync } from "node:fs";
import { mkdtemp, realpath, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import path from "node:path";
import pg from "pg";
import { expect, test } from "vitest";
import { atFileEnd } from "../harness/endings.ts";
import { type ServiceProcess, startProcess } from "../ops/service-process.ts";

const dataDir = await realpath(await mkdtemp(path.join(tmpdir(), "phoneproof-demo-")));
atFileEnd(() => rm(dataDir, { recursive: true, force: true, maxRetries: 5 }));

/** Starts the service, and resolves with what it has told the person who started it. */
async function start(): Promise<{ service: ServiceProcess; told: string }> {
  const service = await startProcess({ DATA_DIR: dataDir });
  await expect.poll(service.text).toContain("npx phoneproof");
  return { service, told: service.text() };
}

async function stop({ child, ended }: ServiceProcess): Promise<void> {
  child.kill("SIGTERM");
  expect(await ended()).toBe(0);
}

async function query(text: string): Promise<unknown[]> {
  const cluster = path.join(dataDir, "postgres");
  const [, , , , socketDirectory] = readFileSync(path.join(cluster, "postmaster.pid"), "utf8").split("\n");
  const client = new pg.Client({
    host: socketDirectory,
    user: "phoneproof",
    password: readFileSync(path.join(cluster, "phoneproof.password"), "utf8").trim(),
    database: "phoneproof",
  });
  await client.connect();
  try {
    return (await client.query({ text, rowMode: "array" })).rows.flat();
  } finally {
    await client.end();
  }
}

const keyIn = (told: string) => /pp_test_\w+/.exec(told)?.[0];

/** 404 with a valid key, since there is no such verification; 401 with another. */
const statusWith = async ({ httpUrl }: ServiceProcess, key: string | undefined) =>
  (await fetch(`${httpUrl}/v1/verifications/vrf_x`, { headers: { authorization: `Bearer ${key}` } })).status;

const counts = `SELECT
  (SELECT count(*)::int FROM project), (SELECT count(*)::int FROM destination_number), (SELECT count(*)::int FROM api_key)`;

test("a first start makes it and shows its key; later ones leave it alone, or make the key that is missing", async () => {
  const first = await start();
  const key = keyIn(first.told);
  expect(await statusWith(first.service, key)).toBe(404);
  await stop(first.service);

  const second = await start();
  expect(second.told).toContain("Keys from earlier starts still work");
  expect(keyIn(second.told)).toBeUndefined();
  expect(await statusWith(second.service, key)).toBe(404);
  expect(await query(counts)).toEqual([1, 2, 2]);
  // As if the first start had ended before it made the key.
  await query("DELETE FROM api_key WHERE environment = 'test'");
  await stop(second.service);

  const third = await start();
  expect(await statusWith(third.service, keyIn(third.told))).toBe(404);
  expect(await query(counts)).toEqual([1, 2, 2]);
  await stop(third.service);
});
