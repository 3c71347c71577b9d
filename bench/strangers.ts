/**
 * `node bench/strangers.ts [seconds]`: how long twenty clients wait for their answers beside strangers who send without pause to the
 * merchants' port, for so many seconds each, compared with the same without them. The service is as in production, on a Postgres with
 * full durability; clients and strangers have a process of their own each.
 */

import http from "node:http";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { startEmbeddedPostgres } from "../src/storage/embedded/embedded-postgres.ts";
import { applyMigrations } from "../src/storage/migrations.ts";
import { ChildProgram } from "./child.ts";
import { type Endings, runCounted } from "./endings.ts";
import { databaseUrlOf, startReady } from "./ready-service.ts";
import type { Flood } from "./stranger-flood.ts";

const clients = 20;
const pauseMs = 20;

const floods: readonly { readonly name: string; readonly flood: Omit<Flood, "port"> }[] = [
  { name: "60 that pipeline requests", flood: { connections: 60, what: "requests", reconnect: false } },
  { name: "60 that send small chunks", flood: { connections: 60, what: "chunks", reconnect: false } },
  { name: "300 that pipeline requests", flood: { connections: 300, what: "requests", reconnect: false } },
  { name: "300 that send small chunks", flood: { connections: 300, what: "chunks", reconnect: false } },
  { name: "100 that reconnect, requests", flood: { connections: 100, what: "requests", reconnect: true } },
  { name: "100 that reconnect, chunks", flood: { connections: 100, what: "chunks", reconnect: true } },
];

interface Waits {
  readonly answered: number;
  readonly failed: number;
  /** In milliseconds: of half of the answers, of 99 in 100, and the longest. */
  readonly p50: number;
  readonly p99: number;
  readonly longest: number;
}

/** Twenty clients on a connection each, which ask again a moment after each answer. */
async function askFor(seconds: number, port: number): Promise<Waits> {
  const until = performance.now() + seconds * 1_000;
  const waits: number[] = [];
  let failed = 0;
  const ask = async () => {
    const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
    while (performance.now() < until) {
      const askedAt = performance.now();
      try {
        await read(port, agent);
        waits.push(performance.now() - askedAt);
      } catch {
        failed += 1;
      }
      await delay(pauseMs);
    }
    agent.destroy();
  };
  await Promise.all(Array.from({ length: clients }, ask));
  waits.sort((one, other) => one - other);
  const at = (share: number) =>
    waits[Math.min(waits.length - 1, Math.floor(share * waits.length))] ?? Number.NaN;
  return { answered: waits.length, failed, p50: at(0.5), p99: at(0.99), longest: at(1) };
}

/** Without a key: what is measured is how long a request waits until it is taken up. */
function read(port: number, agent: http.Agent): Promise<void> {
  return new Promise((resolve, reject) => {
    const request = http.get({ host: "127.0.0.1", port, path: "/v1/verifications/vrf_none", agent });
    request.on("error", reject);
    request.on("response", (response) => response.resume().on("end", resolve).on("error", reject));
  });
}

const cells = ({ answered, failed, p50, p99, longest }: Waits) =>
  [answered.toLocaleString("en"), String(failed), ...[p50, p99, longest].map((ms) => ms.toFixed(1))]
    .map((cell) => cell.padStart(10))
    .join("");

async function run(seconds: number, endings: Endings): Promise<void> {
  const directory = await endings.directory();
  const postgres = await startEmbeddedPostgres({ dataDir: directory, transport: "tcp" });
  endings.add(() => postgres.stop());
  await applyMigrations(postgres.connection, {
    folder: path.join(import.meta.dirname, "../prisma/migrations"),
  });
  const settings = { DATABASE_URL: databaseUrlOf(postgres.connection) };
  process.stdout.write(
    `${"milliseconds".padEnd(30)}${["answered", "failed", "p50", "p99", "longest"].map((name) => name.padStart(10)).join("")}\n`,
  );
  for (const { name, flood } of [undefined, ...floods].map(
    (one) => one ?? { name: "nobody", flood: undefined },
  )) {
    // Each on a service of its own: strangers take memory and addresses beyond their time.
    const service = await startReady(directory, settings, ({ stop }) => endings.add(stop));
    const strangers = new ChildProgram<Flood, object>("stranger-flood.ts");
    endings.add(() => strangers.close());
    if (flood !== undefined) await strangers.ask({ ...flood, port: service.httpPort });
    process.stdout.write(`${name.padEnd(30)}${cells(await askFor(seconds, service.httpPort))}\n`);
    strangers.close();
    await service.stop();
  }
}

await runCounted({ usage: "strangers.ts [seconds]", usual: 6 }, run);
