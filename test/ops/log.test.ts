import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { closeSync, existsSync, openSync } from "node:fs";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import type { Readable } from "node:stream";
import { text } from "node:stream/consumers";
import { setTimeout as delay } from "node:timers/promises";
import { promisify } from "node:util";
import { type Logger, pino } from "pino";
import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from "vitest";
import { type Config, parseConfig } from "../../src/config.ts";
import { Failure } from "../../src/failures.ts";
import { createLog } from "../../src/log/log.ts";
import { stepLogLevel } from "../../src/log/log-level.ts";
import { startService } from "../../src/service.ts";
import { version } from "../../src/version.ts";
import { merchant } from "../gateway/merchant.ts";
import { exchange } from "../gateway/raw-http.ts";
import { createDatabase, openPool, type TestDatabase } from "../harness/database.ts";
import { startTestService } from "../harness/service.ts";
import { scrape } from "./scrape.ts";
import { type OutputKind, openPipe, type ServiceProcess, startProcess } from "./service-process.ts";

let database: TestDatabase;

beforeAll(async () => {
  database = await createDatabase();
});
afterAll(() => database.drop());

/** For tests that start a process, keep it busy and end it. */
const timeout = 120_000;

const start = (environment: Record<string, string> = {}, kind?: OutputKind | { readonly file: string }) =>
  startProcess({ DATABASE_URL: database.url, ...environment }, kind);

/** Makes at least this many requests, over 16 connections. Returns their request ids. */
async function send(httpUrl: string, count: number): Promise<string[]> {
  const each = Math.ceil(count / 16);
  const requests = "GET /no-such-route HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(each);
  const answers = await Promise.all(
    Array.from({ length: 16 }, () => exchange(httpUrl, requests, { answers: each })),
  );
  return answers.flat().map(({ status, headers }) => {
    expect(status).toBe(404);
    return headers.get("x-request-id") ?? "";
  });
}

interface Line {
  readonly level: number;
  readonly msg: string;
  readonly requestId?: string;
  readonly logLevel?: string;
  readonly http?: string;
}

/** The complete lines. */
const linesOf = (text: string) =>
  text
    .split("\n")
    .slice(0, -1)
    .filter((line) => line.startsWith("{"))
    .map((line) => JSON.parse(line) as Line);

/** Makes requests until more lines have been logged than fit into the buffers between the service and its reader. */
async function sendUntilLogWaits({ httpUrl, opsUrl }: ServiceProcess): Promise<string[]> {
  const ids: string[] = [];
  for (;;) {
    ids.push(...(await send(httpUrl, 320)));
    const [one, next] = [await scrape(opsUrl), await scrape(opsUrl)];
    expect(next.sum("phoneproof_log_dropped_lines_total")).toBe(0);
    const waiting = next.sum("phoneproof_log_waiting_bytes");
    // Without a change, none is being written.
    if (waiting > 0 && waiting === one.sum("phoneproof_log_waiting_bytes")) return ids;
  }
}

describe.for<OutputKind>(["socket", "pipe"])("with a %s as log output", { timeout }, (kind) => {
  test("a reader that pauses under load loses no line, and neither it nor one that is gone holds up calls", async () => {
    const service = await start({}, kind);
    service.output.pause();
    const ids = await sendUntilLogWaits(service);
    service.output.resume();
    const logged = () =>
      linesOf(service.text())
        .filter(({ msg }) => msg === "request")
        .map(({ requestId }) => requestId);
    await expect.poll(() => logged().length, { timeout: 45_000 }).toBe(ids.length);
    expect(new Set(logged())).toEqual(new Set(ids));

    service.output.destroy();
    await send(service.httpUrl, 50);
    service.child.kill("SIGTERM");
    expect(await service.ended()).toBe(0);
  });

  test("a reader that has stopped reading does not keep the service from ending", async () => {
    const service = await start({}, kind);
    service.output.pause();
    await sendUntilLogWaits(service);
    service.child.kill("SIGTERM");
    expect(await service.ended()).toBe(0);
  });
});

test.for<{ kind: OutputKind; and: string; pausesMs: readonly number[] }>([
  { kind: "socket", and: "", pausesMs: [] },
  { kind: "pipe", and: "", pausesMs: [] },
  // Longer than a reader that accepts nothing is waited for.
  { kind: "pipe", and: ", though both are suspended meanwhile", pausesMs: [3_000] },
  { kind: "pipe", and: ", though both are suspended again and again", pausesMs: [1_200, 1_200, 1_200] },
])("at the end the service waits for a slow reader of a $kind, which loses no line$and", async ({
  kind,
  pausesMs,
}) => {
  const pipe = kind === "pipe" ? openPipe() : undefined;
  const child = spawn(process.execPath, [path.join(import.meta.dirname, "long-log.ts")], {
    stdio: ["ignore", pipe?.writeEnd ?? "pipe", "inherit"],
  });
  if (pipe) closeSync(pipe.writeEnd);
  const reader = (pipe?.readEnd ?? child.stdout) as Readable;
  const ended = once(reader, "end");
  let text = "";
  // Three megabytes, some sixty kilobytes at a time.
  const read = () => setInterval(() => (text += reader.read() ?? ""), 100);
  let reading = read();
  // With this listener the stream stays paused after the process has ended, and is read above.
  reader.setEncoding("utf8").on("readable", () => {});
  if (pausesMs.length > 0) {
    await vi.waitUntil(() => text.length > 500_000, { timeout: 45_000 });
    clearInterval(reading);
    // What the process writes fills the pipe again: otherwise there would be progress when it continues.
    await vi.waitUntil(() => reader.readableLength >= reader.readableHighWaterMark, { timeout: 45_000 });
    await delay(100);
    for (const pauseMs of pausesMs) {
      child.kill("SIGSTOP");
      await delay(pauseMs);
      child.kill("SIGCONT");
      await delay(100);
    }
    reading = read();
  }
  await ended;
  clearInterval(reading);
  expect(linesOf(text).length).toBe(3_000);
});

test.for([
  "socket",
  "pipe",
  "file",
])("a process that ends at once has written its last line to a %s", async (kind) => {
  const pipe = kind === "pipe" ? openPipe() : undefined;
  const directory = await mkdtemp(path.join(os.tmpdir(), "phoneproof-log-"));
  onTestFinished(() => rm(directory, { recursive: true }));
  const file = path.join(directory, "log");
  const stdout = kind === "file" ? openSync(file, "a") : pipe?.writeEnd;
  const child = spawn(process.execPath, [path.join(import.meta.dirname, "last-words.ts")], {
    stdio: ["ignore", stdout ?? "pipe", "inherit"],
  });
  if (stdout !== undefined) closeSync(stdout);
  const [printed] = await Promise.all([
    kind === "file" ? "" : text((pipe?.readEnd ?? child.stdout) as Readable),
    once(child, "exit"),
  ]);
  const written = kind === "file" ? await readFile(file, "utf8") : printed;
  expect(linesOf(written)).toEqual([expect.objectContaining({ msg: "the last words" })]);
});

test("a worker process also logs that it is running", { timeout }, async () => {
  const worker = await start({ ROLES: "worker" });
  await expect
    .poll(() => linesOf(worker.text()), { timeout: 45_000 })
    .toContainEqual(
      expect.objectContaining({ msg: "phoneproof is running", ops: worker.opsUrl.replace("http://", "") }),
    );
});

test(
  "a worker logs each job that fails, and why retention waits, in the words of the runbook",
  { timeout },
  async () => {
    const service = await startTestService({ ROLES: "api" });
    const { liveKey } = await service.createProject();
    await merchant(service.httpUrl, liveKey).create();
    /** Starts a worker, and ends it once its log has the lines: as many as there are, each with these fields. */
    const logged = async (lines: readonly object[]) => {
      const written: string[] = [];
      const settings = parseConfig({ OPS_PORT: "0", DATABASE_URL: service.databaseUrl, ROLES: "worker" });
      const log = pino({ base: null, timestamp: false }, { write: (line) => written.push(line) });
      const worker = await startService(settings, log);
      try {
        for (const line of lines)
          await expect
            .poll(() => written.map((line) => JSON.parse(line)))
            .toContainEqual(expect.objectContaining(line));
      } finally {
        await worker.close();
      }
    };
    const away = ["retention_progress", "statistics_progress", "webhook_delivery"];
    const err = (table: string) => expect.objectContaining({ message: `relation "${table}" does not exist` });
    for (const table of away) await service.db.query(`ALTER TABLE ${table} RENAME TO ${table}_away`);
    await logged([
      {
        level: 30,
        msg: "no worker has looked at this database's clock before: retention waits for an hour",
      },
      { level: 40, msg: "overdue verifications could not be expired", err: err("retention_progress") },
      {
        level: 40,
        msg: "data past its retention period could not be deleted",
        task: "erase_verifications",
        err: err("retention_progress"),
      },
      { level: 40, msg: "the statistics could not be updated", err: err("statistics_progress") },
      {
        level: 40,
        msg: "the check for silent numbers and carriers failed",
        err: err("statistics_progress"),
      },
      {
        level: 40,
        msg: "webhook deliveries could not be claimed, or their results recorded",
        err: err("webhook_delivery"),
      },
    ]);
    for (const table of away) await service.db.query(`ALTER TABLE ${table}_away RENAME TO ${table}`);
    await service.db.query("UPDATE retention_clock SET seen_at = '2020-01-01T00:00:00Z'");
    await logged([
      {
        level: 40,
        msg: "the database's clock has jumped, or no worker ran for long: retention waits for an hour",
        from: "2020-01-01T00:00:00.000Z",
        to: expect.stringMatching(/^2[0-9T:.-]+Z$/),
      },
    ]);
  },
);

test(
  "a database that refuses the readiness check makes the process unready, and the log has the reason once",
  {
    timeout,
  },
  async () => {
    const own = await createDatabase();
    onTestFinished(() => own.drop());
    const service = await start({ DATABASE_URL: own.url });
    const db = openPool({ ...own.connection, max: 1 });
    await db.query("ALTER TABLE _prisma_migrations RENAME COLUMN finished_at TO ended_at");
    const ready = async () => {
      const response = await fetch(`${service.opsUrl}/readyz`);
      return `${response.status} ${await response.text()}`;
    };
    const reasons = () => linesOf(service.text()).filter(({ msg }) => msg.startsWith("not ready"));
    const refusing = "503 not ready: the database refuses the login or the check: the log has its reason\n";
    await expect.poll(ready, { interval: 200 }).toBe(refusing);
    await delay(600);
    expect(await ready()).toBe(refusing);
    expect(reasons()).toEqual([
      expect.objectContaining({
        level: 40,
        msg: "not ready: the database answered with an error",
        err: expect.objectContaining({ message: expect.stringContaining("finished_at") }),
      }),
    ]);
    await db.query("ALTER TABLE _prisma_migrations RENAME COLUMN ended_at TO finished_at");
    await expect.poll(ready, { interval: 200 }).toBe("200 ready\n");
    await db.query("ALTER TABLE _prisma_migrations RENAME COLUMN finished_at TO ended_at");
    await expect.poll(() => ready().then(() => reasons().length), { interval: 200 }).toBe(2);
  },
);

test("a log file has every line when the service has ended", { timeout }, async () => {
  const directory = await mkdtemp(path.join(os.tmpdir(), "phoneproof-log-"));
  onTestFinished(() => rm(directory, { recursive: true }));
  const file = path.join(directory, "service.log");
  // The admin token is just long enough.
  const service = await start({ PHONEPROOF_ADMIN_TOKEN: "q".repeat(24) }, { file });
  const ids = await send(service.httpUrl, 200);
  service.child.kill("SIGTERM");
  expect(await service.ended()).toBe(0);
  const lines = linesOf(await readFile(file, "utf8"));
  const logged = lines.flatMap(({ requestId }) => requestId ?? []);
  expect(new Set(logged)).toEqual(new Set(ids));
  expect(lines.filter(({ msg }) => msg.startsWith("phoneproof "))).toMatchObject([
    { msg: "phoneproof is running", version, ops: service.opsUrl.replace("http://", "") },
    { level: 30, msg: "phoneproof is stopping", signal: "SIGTERM" },
    { level: 30, msg: "phoneproof has stopped" },
  ]);
  expect(lines.at(-1)?.msg).toBe("phoneproof has stopped");
  expect(lines.filter(({ msg }) => msg.includes("ADMIN_TOKEN"))).toEqual([]);
});

/** A full disk. Not available everywhere. */
const fullDisk = ["/dev/full"].filter((file) => existsSync(file));

test.for(fullDisk)(
  "a full disk (%s) holds up neither calls nor the end of the service",
  { timeout },
  async (file) => {
    const service = await start({}, { file });
    expect(await send(service.httpUrl, 200)).not.toContain("");
    const { sum } = await scrape(service.opsUrl);
    expect(sum("phoneproof_log_waiting_bytes")).toBeGreaterThan(0);
    service.child.kill("SIGTERM");
    expect(await service.ended()).toBe(0);
  },
);

test(
  "each SIGUSR2 raises the log level by one step, and after the last step it is the configured one again",
  { timeout },
  async () => {
    const service = await start({ LOG_LEVEL: "warn" });
    const changes = () => linesOf(service.text()).flatMap(({ logLevel }) => logLevel ?? []);
    const step = async (level: string) => {
      const before = changes().length;
      service.child.kill("SIGUSR2");
      await expect.poll(() => changes().slice(before)).toEqual([level]);
    };
    const requests = () => linesOf(service.text()).filter(({ msg }) => msg === "request").length;

    await send(service.httpUrl, 16);
    await step("info");
    expect(requests()).toBe(0);
    const ids = await send(service.httpUrl, 16);
    await step("debug");
    await step("trace");
    await step("warn");
    expect(requests()).toBe(ids.length);
    await send(service.httpUrl, 16);
    await step("info");
    expect(requests()).toBe(ids.length);
  },
);

/** Runs a program on a terminal. Most systems have it; npm's packages for that need a compiler. */
const script = ["/usr/bin/script"].filter((file) => existsSync(file));

test.for(script)("on a terminal (made by %s) log lines are formatted for people", async (terminal) => {
  const env = {
    ...process.env,
    NODE: process.execPath,
    PROGRAM: path.join(import.meta.dirname, "terminal-log.ts"),
  };
  const { stdout } = await promisify(execFile)(terminal, ["-qec", '"$NODE" "$PROGRAM"', "/dev/null"], {
    env,
  });
  expect(stdout).toMatch(/\d\d:\d\d:\d\d\.\d{3}.*WARN.*something to see.*\{"answer":42\}/);
});

/** What a log writes. */
function written(write: (log: Logger) => void, level: Config["logLevel"] = "warn") {
  let lines = "";
  const output = {
    write: (more: string) => (lines += more),
    waitingBytes: 0,
    droppedLines: 0,
    async end() {},
  };
  const log = createLog(level, output);
  write(log);
  log.flush();
  return lines
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line));
}

test("after the most verbose level a step returns to the configured one, and each step is written as a warning if that can be seen", () => {
  const steps = written((log) => {
    log.level = "fatal";
    for (let step = 0; step < 7; step++) stepLogLevel(log, "fatal");
  });
  expect(steps.map(({ level, logLevel }) => `${level} ${logLevel}`)).toEqual([
    "60 error",
    "40 warn",
    "40 info",
    "40 debug",
    "40 trace",
    "40 fatal",
    "60 error",
  ]);
});

test("each step is written, even if the log was silent", () => {
  const steps = written((log) => {
    for (let step = 0; step < 7; step++) stepLogLevel(log, "silent");
  }, "silent");
  expect(steps.map(({ level, logLevel }) => `${level} ${logLevel}`)).toEqual([
    "60 fatal",
    "60 error",
    "40 warn",
    "40 info",
    "40 debug",
    "40 trace",
    "40 silent",
  ]);
});

test("of an error whose message is for callers, the log has the reason", () => {
  const reason = Object.assign(new Error("canceling statement due to lock timeout"), { code: "55P03" });
  const err = new Failure("service_unavailable", { cause: reason });
  expect(written((log) => log.warn({ err }, "a job failed"))).toEqual([
    expect.objectContaining({
      err: expect.objectContaining({ code: "55P03", message: reason.message }),
      msg: "a job failed",
    }),
  ]);
});

test.for<[string, unknown]>([
  ["an error", new Error("no row for 01012345678 of pp_live_secret")],
  ["its cause", new Error("failed", { cause: new Error("no row for 01012345678 of pp_live_secret") })],
  ["one of several", new AggregateError([new Error("no row for 01012345678 of pp_live_secret")])],
  ["what is no error", "no row for 01012345678 of pp_live_secret"],
])("of %s neither longer numbers nor credentials are logged, but the rest is", ([, err]) => {
  const [line] = written((log) => log.error({ err }, "a job failed"));
  const text = JSON.stringify(line);
  expect(text).toContain("no row for … of pp_…");
  expect(text).not.toMatch(/01012345678|secret/);
});

test("the time of a line is exact to the millisecond", () => {
  onTestFinished(() => void vi.useRealTimers());
  const times = ["04.999", "05.000", "05.007", "05.070", "05.700"].map((end) => `2026-11-21T06:41:${end}Z`);
  const lines = written((log) => {
    for (const time of times) {
      vi.useFakeTimers({ toFake: ["Date"], now: new Date(time) });
      log.warn("now");
    }
  });
  expect(lines.map(({ time }) => time)).toEqual(times);
});

test("the log warns about a short admin token, without containing it", { timeout }, async () => {
  const service = await start({ PHONEPROOF_ADMIN_TOKEN: "quetzal" });
  const warnings = () =>
    linesOf(service.text())
      .map(({ msg }) => msg)
      .filter((msg) => msg.includes("ADMIN_TOKEN"));
  await expect.poll(warnings).not.toEqual([]);
  service.child.kill("SIGTERM");
  await service.ended();
  const [warning, ...more] = warnings();
  expect(more).toEqual([]);
  expect(warning).toMatch(/^PHONEPROOF_ADMIN_TOKEN has fewer than 24 characters.* openssl rand -base64 32$/);
  expect(warning).not.toContain("quetzal");
});

// Of the loopback addresses, macOS has only 127.0.0.1.
if (process.platform === "linux")
  test(
    "if HOST keeps localhost from answering, the start gives the address that does, and says to set PUBLIC_BASE_URL",
    { timeout },
    async () => {
      const service = await start({ HOST: "127.0.0.2" });
      const running = () => linesOf(service.text()).find(({ msg }) => msg === "phoneproof is running");
      await expect.poll(running, { timeout: 45_000 }).toBeDefined();
      const { http = "" } = running() ?? {};
      expect(http).toMatch(/^http:\/\/127\.0\.0\.2:\d+$/);
      expect((await fetch(`${http}/openapi.json`)).status).toBe(200);
      expect(linesOf(service.text()).map(({ msg }) => msg)).toContainEqual(
        expect.stringMatching(
          /^with HOST=127\.0\.0\.2, nothing answers at http:\/\/localhost:\d+, .+ set PUBLIC_BASE_URL/,
        ),
      );
    },
  );
