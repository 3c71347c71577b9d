/**
 * `node bench/strangers.ts [seconds]`: how long twenty clients wait for their answers beside strangers who send without pause, for so
 * many seconds each, compared with the same without them; and how long those wait that connect for each call. On the merchants' port the
 * clients have no key, since what is measured is how long a request waits until it is taken up; on the gRPC port they have a valid
 * credential, and ask for what needs no database. The service is as in production, on a Postgres with full durability; clients and
 * strangers have a process of their own each.
 */

import http from "node:http";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { Code, ConnectError, createClient } from "@connectrpc/connect";
import { Http2SessionManager } from "@connectrpc/connect-node";
import { ProjectService } from "../src/gen/proto/phoneproof/v1/project_pb.ts";
import { startEmbeddedPostgres } from "../src/storage/embedded/embedded-postgres.ts";
import { applyMigrations } from "../src/storage/migrations.ts";
import { transportTo } from "../test/harness/grpc-transport.ts";
import { ChildProgram } from "./child.ts";
import { type Endings, runCounted } from "./endings.ts";
import { databaseUrlOf, type ReadyService, startReady } from "./ready-service.ts";
import type { Flood } from "./stranger-flood.ts";

const keepers = 20;
/** Clients that connect for each call. */
const connectors = 2;
const pauseMs = 20;
const adminToken = "a-token-of-this-benchmark-and-nothing-else";

type Given = Pick<Flood, "connections" | "what" | "reconnect">;

const overHttp: readonly (readonly [string, Given])[] = [
  ["60 that pipeline requests", { connections: 60, what: "requests", reconnect: false }],
  ["60 that send small chunks", { connections: 60, what: "chunks", reconnect: false }],
  ["300 that pipeline requests", { connections: 300, what: "requests", reconnect: false }],
  ["300 that send small chunks", { connections: 300, what: "chunks", reconnect: false }],
  ["100 that reconnect, requests", { connections: 100, what: "requests", reconnect: true }],
  ["100 that reconnect, chunks", { connections: 100, what: "chunks", reconnect: true }],
];
const overGrpc: typeof overHttp = [
  ["200 that open streams", { connections: 200, what: "streams", reconnect: false }],
  ["200 that send header fields", { connections: 200, what: "fields", reconnect: false }],
  ["200 that send small frames", { connections: 200, what: "frames", reconnect: false }],
  ["200 that reconnect, streams", { connections: 200, what: "streams", reconnect: true }],
  ["200 that reconnect, fields", { connections: 200, what: "fields", reconnect: true }],
  ["200 that reconnect, frames", { connections: 200, what: "frames", reconnect: true }],
];

interface Waits {
  readonly answered: number;
  readonly failed: number;
  /** In milliseconds: of half of the answers, of 99 in 100, and the longest. */
  readonly p50: number;
  readonly p99: number;
  readonly longest: number;
}

/** Connections on which to ask: a new one each time it is called. */
type Connect = () => { readonly ask: () => Promise<unknown>; close(): void };

/** Clients that ask again a moment after each answer. */
async function askFor(seconds: number, clients: number, connect: Connect, isKept: boolean): Promise<Waits> {
  const until = performance.now() + seconds * 1_000;
  const waits: number[] = [];
  let failed = 0;
  const askAgain = async () => {
    let connection = connect();
    if (isKept) await connection.ask().catch(() => {});
    while (performance.now() < until) {
      const askedAt = performance.now();
      try {
        await connection.ask();
        waits.push(performance.now() - askedAt);
      } catch {
        failed += 1;
      }
      if (!isKept) {
        connection.close();
        connection = connect();
      }
      await delay(pauseMs);
    }
    connection.close();
  };
  await Promise.all(Array.from({ length: clients }, askAgain));
  waits.sort((one, other) => one - other);
  const at = (share: number) =>
    waits[Math.min(waits.length - 1, Math.floor(share * waits.length))] ?? Number.NaN;
  return { answered: waits.length, failed, p50: at(0.5), p99: at(0.99), longest: at(1) };
}

function connectOverHttp({ httpPort }: ReadyService): ReturnType<Connect> {
  const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });
  const options = { host: "127.0.0.1", port: httpPort, path: "/v1/verifications/vrf_none", agent };
  return {
    ask: () =>
      new Promise<void>((resolve, reject) => {
        const request = http.get(options);
        request.on("error", reject);
        request.on("response", (response) => response.resume().on("end", resolve).on("error", reject));
      }),
    close: () => agent.destroy(),
  };
}

function connectOverGrpc({ grpcAddress }: ReadyService): ReturnType<Connect> {
  const sessionManager = new Http2SessionManager(`http://${grpcAddress}`);
  const transport = transportTo(grpcAddress, `Bearer ${adminToken}`, sessionManager);
  const projects = createClient(ProjectService, transport);
  return {
    async ask() {
      const refusal = await projects.getProject({ projectId: "none" }).catch(ConnectError.from);
      if (!(refusal instanceof ConnectError) || refusal.code !== Code.NotFound) throw refusal;
    },
    close: () => sessionManager.abort(),
  };
}

const cell = (text: string) => text.padStart(10);
const milliseconds = (numbers: readonly number[]) => numbers.map((ms) => cell(ms.toFixed(1))).join("");
const head = ["answered", "failed", "p50", "p99", "longest", "| new", "failed", "p50", "p99"]
  .map(cell)
  .join("");

/** Of those that keep their connections, and of those that connect for each call. */
const cells = (kept: Waits, fresh: Waits) =>
  [
    cell(kept.answered.toLocaleString("en")),
    cell(String(kept.failed)),
    milliseconds([kept.p50, kept.p99, kept.longest]),
    cell(`| ${fresh.answered}`),
    cell(String(fresh.failed)),
    milliseconds([fresh.p50, fresh.p99]),
  ].join("");

async function run(seconds: number, endings: Endings): Promise<void> {
  const directory = await endings.directory();
  const postgres = await startEmbeddedPostgres({ dataDir: directory, transport: "tcp" });
  endings.add(() => postgres.stop());
  await applyMigrations(postgres.connection, {
    folder: path.join(import.meta.dirname, "../prisma/migrations"),
  });
  const settings = {
    DATABASE_URL: databaseUrlOf(postgres.connection),
    PHONEPROOF_ADMIN_TOKEN: adminToken,
  };
  for (const [port, floods, connectTo] of [
    ["merchants' port", overHttp, connectOverHttp],
    ["gRPC port", overGrpc, connectOverGrpc],
  ] as const) {
    process.stdout.write(`${`${port}, milliseconds`.padEnd(30)}${head}\n`);
    for (const [name, flood] of [["nobody", undefined] as const, ...floods]) {
      // Each on a service of its own: strangers take memory and addresses beyond their time.
      const service = await startReady(directory, settings, ({ stop }) => endings.add(stop));
      const strangers = new ChildProgram<Flood, object>("stranger-flood.ts");
      endings.add(() => strangers.close());
      const attacked =
        connectTo === connectOverHttp ? service.httpPort : Number(service.grpcAddress.split(":")[1]);
      if (flood !== undefined) await strangers.ask({ ...flood, port: attacked });
      const connect = () => connectTo(service);
      const [kept, fresh] = await Promise.all([
        askFor(seconds, keepers, connect, true),
        askFor(seconds, connectors, connect, false),
      ]);
      process.stdout.write(`${name.padEnd(30)}${cells(kept, fresh)}\n`);
      strangers.close();
      await service.stop();
    }
  }
}

await runCounted({ usage: "strangers.ts [seconds]", usual: 6 }, run);
