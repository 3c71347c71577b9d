import { spawn } from "node:child_process";
import { once } from "node:events";
import net from "node:net";
import path from "node:path";
import { text } from "node:stream/consumers";
import { setImmediate } from "node:timers/promises";
import { describe, expect, onTestFinished, test, vi } from "vitest";
import { Closers } from "../../src/closers.ts";
import { createLog } from "../../src/log/log.ts";
import { type DatabaseProxy, startDatabaseProxy } from "../faults/database-proxy.ts";
import { merchant } from "../gateway/merchant.ts";
import { createDatabase, openPool } from "../harness/database.ts";
import { atFileEnd } from "../harness/endings.ts";
import { plainEnvironment } from "../harness/environment.ts";
import { startTestService } from "../harness/service.ts";
import { startProcess } from "../ops/service-process.ts";
import { untilWaiting } from "./barrier.ts";

const beside = await startTestService({ ROLES: "api" });
const { liveKey } = await beside.createProject();

async function proxyTo(databaseUrl: string): Promise<{ proxy: DatabaseProxy; url: string }> {
  const url = new URL(databaseUrl);
  const proxy = await startDatabaseProxy({ host: url.hostname, port: Number(url.port) });
  atFileEnd(() => proxy.close());
  url.host = `127.0.0.1:${proxy.port}`;
  return { proxy, url: url.href };
}

test.for([
  { name: "a worker during retention", roles: "worker", waiting: 1, known: true },
  {
    name: "a process of both roles with a call in progress",
    roles: "api,worker",
    waiting: 2,
    known: true,
  },
  { name: "a process that has not noticed it yet", roles: "api,worker", waiting: 2, known: false },
])("$name exits with 0 though the database has stopped answering, and answers its pending calls", async ({
  roles,
  waiting,
  known,
}) => {
  const { proxy, url } = await proxyTo(beside.databaseUrl);
  // Statements that need this lock are waiting when the database stops answering.
  const holder = await beside.db.connect();
  await holder.query("BEGIN; LOCK TABLE idempotency_record IN ACCESS EXCLUSIVE MODE");
  try {
    const service = await startProcess({ DATABASE_URL: url, ROLES: roles });
    const call = roles === "worker" ? undefined : merchant(service.httpUrl, liveKey).create();
    await untilWaiting(beside.db, waiting);
    // The jobs wait, too, so make sure that the call does.
    if (call) await expect.poll(waitingCharges).toBe(1);
    await proxy.setState("black hole");
    // Until the periodic checks of the database have noticed.
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

describe("a start that has to wait exits with 0 and prints nothing when it is signalled", () => {
  const program = path.join(import.meta.dirname, "../../bin/start.mjs");

  function begin(databaseUrl: string, flags: readonly string[] = []) {
    const child = spawn(process.execPath, [...flags, program], {
      stdio: ["ignore", "ignore", "pipe"],
      env: plainEnvironment({
        DATABASE_URL: databaseUrl,
        PHONEPROOF_ADMIN_TOKEN: "an-admin-token-that-is-long-enough",
        PORT: "0",
        GRPC_PORT: "0",
        OPS_PORT: "0",
      }),
    });
    const exited = once(child, "exit");
    onTestFinished(async () => {
      child.kill("SIGKILL");
      await exited;
    });
    const ended = Promise.all([exited.then(([code]) => code), text(child.stderr)]);
    return { child, ended };
  }

  test("while another process migrates: SIGTERM", async () => {
    const database = await createDatabase({ empty: true });
    const db = openPool({ connectionString: database.url });
    const holder = await db.connect();
    onTestFinished(async () => {
      holder.release(true);
      await db.end();
      await database.drop();
    });
    const prismaLock = 72707369;
    await holder.query(`SELECT pg_advisory_lock(${prismaLock})`);
    const { child, ended } = begin(database.url);
    await untilWaiting(db, 1);
    child.kill("SIGTERM");
    expect(await ended).toEqual([0, ""]);
    // The server notices by itself that nobody waits any more.
    await vi.waitUntil(
      async () => {
        const { rows } = await db.query(
          "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
        );
        return rows.length === 0;
      },
      { timeout: 45_000, interval: 20 },
    );
  });

  test("while its own program is being read", async () => {
    const atMain = `import { registerHooks } from "node:module";
      registerHooks({
        load(url, context, next) {
          if (url.endsWith("/src/main.ts")) process.kill(process.pid, "SIGTERM");
          return next(url, context);
        },
      });`;
    const preload = `--import=data:text/javascript,${encodeURIComponent(atMain)}`;
    const { ended } = begin("postgres://phoneproof:secret@127.0.0.1:1/phoneproof", [preload]);
    expect(await ended).toEqual([0, ""]);
  });

  test("while a database accepts connections and says nothing: SIGINT", async () => {
    const silent = net.createServer();
    silent.listen(0, "127.0.0.1");
    await once(silent, "listening");
    onTestFinished(() => void silent.close());
    const { port } = silent.address() as net.AddressInfo;
    const connected = once(silent, "connection");
    const { child, ended } = begin(`postgres://phoneproof:secret@127.0.0.1:${port}/phoneproof`);
    const [socket] = await connected;
    (socket as net.Socket).on("error", () => {});
    child.kill("SIGINT");
    expect(await ended).toEqual([0, ""]);
  });
});

test("the parts of a service end in the reverse of their order, after the jobs were told; one that fails is logged", async () => {
  const written: string[] = [];
  const output = { waitingBytes: 0, droppedLines: 0, end: async () => {} };
  const log = createLog("info", { ...output, write: (lines) => void written.push(lines) });
  const ended: string[] = [];
  const closers = new Closers();
  const told = Promise.withResolvers<void>();
  closers.add(async () => void ended.push("the database"));
  closers.startJob({
    start() {},
    async stop() {
      ended.push("the job was told");
      await told.promise;
      ended.push("the job");
    },
  });
  closers.add(() => Promise.reject(new Error("it hangs")));
  // Its turn comes only once Node has looked for rejections that nobody handles.
  closers.startJob({ start() {}, stop: () => Promise.reject(new Error("it fails")) });
  closers.add(async () => {
    await setImmediate();
    ended.push("the server");
  });
  const closed = closers.close(log);
  await setImmediate();
  await setImmediate();
  // Nothing that the job needs is closed before it has ended.
  expect(ended).toEqual(["the job was told", "the server"]);
  told.resolve();
  await closed;
  expect(ended).toEqual(["the job was told", "the server", "the job", "the database"]);
  log.flush();
  const lines = written.join("").trimEnd().split("\n");
  expect(lines.map((line) => JSON.parse(line))).toMatchObject([
    { level: 50, err: { message: "it fails" } },
    { level: 50, err: { message: "it hangs" } },
  ]);
});

async function waitingCharges(): Promise<number | null> {
  const { rowCount } = await beside.db.query(
    "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%charged%'",
  );
  return rowCount;
}
