/** Rate limits of several processes. Tests that need Redis are registered only on machines that have it. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import net from "node:net";
import { createClient } from "@redis/client";
import { pino } from "pino";
import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from "vitest";
import { findProgram } from "../../deploy/cluster/programs.ts";
import { parseConfig } from "../../src/config.ts";
import { startService } from "../../src/service.ts";
import { merchant, usageOf } from "../gateway/merchant.ts";
import { hasIpv6, noteAbsence } from "../harness/absent-tools.ts";
import { blockFor } from "../harness/blocking.ts";
import { createDatabase } from "../harness/database.ts";
import { freePorts } from "../harness/ports.ts";
import { startTestService, type TestService } from "../harness/service.ts";
import { shortenTimers } from "../harness/timers.ts";
import { scrape } from "../ops/scrape.ts";
import { createWindow, getPage } from "../window/open-window.ts";

const redisServer = findProgram("redis-server") ?? findProgram("valkey-server");

/** How many of the creations are admitted, sent to these services in turn and all at once. */
async function admitted(services: readonly TestService[], key: string, calls: number): Promise<number> {
  const shops = services.map(({ httpUrl }) => merchant(httpUrl, key));
  const answers = await Promise.all(
    Array.from({ length: calls }, (_, call) => shops[call % shops.length]?.create()),
  );
  for (const answer of answers) expect([201, 429]).toContain(answer?.status);
  return answers.filter((answer) => answer?.status === 201).length;
}

/** The metric of a lost Redis: 1 while it is unavailable. */
const lostBy = async ({ opsUrl }: Pick<TestService, "opsUrl">) =>
  (await scrape(opsUrl)).samples.find(({ name }) => name === "phoneproof_redis_lost")?.value;

/** Waits until the service uses its Redis; on a busy machine, the first answers may be late. */
const untilUsed = (service: Pick<TestService, "opsUrl">) =>
  expect.poll(() => lostBy(service), { timeout: 45_000 }).toBe(0);

test("without Redis, the metric does not report one as lost", async () => {
  expect(await lostBy(await startTestService())).toBe(0);
});

interface FakeRedis {
  readonly port: number;
  /** Of every connection that was opened. */
  readonly sockets: readonly net.Socket[];
  /** What it answers a script, or true: the counts of a first call, null: nothing. */
  answer: string | true | null;
  /** How much later it answers a script. */
  lateMs: number;
  /** Whether it closes each connection at once. */
  refuses: boolean;
  /** The scripts it was sent. */
  scripts: number;
  /** Called for each script. */
  onScript: () => void;
  closeConnections(): void;
  close(): Promise<void>;
}

/** Something that answers like a Redis, as the test says. */
async function startFakeRedis(port = 0, host = "127.0.0.1"): Promise<FakeRedis> {
  const sockets: net.Socket[] = [];
  const server = net.createServer((socket) => {
    sockets.push(socket.on("error", () => {}));
    if (fake.refuses) socket.destroy();
    socket.on("data", (data) => {
      for (const [, name] of data.toString().matchAll(/^\*\d+\r\n\$\d+\r\n(\w+)/gm)) {
        if (name !== "EVAL") {
          if (fake.answer !== null) socket.write("+OK\r\n");
          continue;
        }
        fake.scripts++;
        fake.onScript();
        const answer = fake.answer === true ? "*2\r\n:1\r\n:60000\r\n" : fake.answer;
        if (answer === null) continue;
        if (fake.lateMs === 0) socket.write(answer);
        else setTimeout(() => socket.write(answer), fake.lateMs);
      }
    });
  });
  const closeConnections = () => {
    for (const socket of sockets) socket.destroy();
  };
  const fake: FakeRedis = {
    port: 0,
    sockets,
    answer: true,
    lateMs: 0,
    refuses: false,
    scripts: 0,
    onScript: () => {},
    closeConnections,
    async close() {
      const closed = new Promise((resolve) => server.close(resolve));
      closeConnections();
      await closed;
    },
  };
  await new Promise<void>((resolve) => server.listen(port, host, resolve));
  onTestFinished(fake.close);
  return Object.assign(fake, { port: (server.address() as net.AddressInfo).port });
}

/** Starts a service with this Redis. Returns what it logs about it once it uses it. */
async function startLogged(port: number) {
  const database = await createDatabase();
  const logged: { readonly msg: string; readonly err?: { readonly message: string } }[] = [];
  const log = pino({}, { write: (line) => logged.push(JSON.parse(line)) });
  const service = await startService(
    parseConfig({
      PORT: "0",
      GRPC_PORT: "0",
      OPS_PORT: "0",
      ROLES: "api",
      DATABASE_URL: database.url,
      REDIS_URL: `redis://127.0.0.1:${port}`,
    }),
    log,
  );
  onTestFinished(async () => {
    await service.close();
    await database.drop();
  });
  const aboutRedis = () =>
    logged
      .filter(({ msg }) => msg.startsWith("Redis"))
      .map(({ msg, err }) => `${msg.split(":")[0]}${err ? `: ${err.message}` : ""}`);
  await untilUsed({ opsUrl: `http://${service.addresses.ops}` });
  logged.length = 0;
  return aboutRedis;
}

if (!hasIpv6) noteAbsence("IPv6", "a Redis with an IPv6 address");
if (hasIpv6)
  test("Redis may be at an IPv6 address", async () => {
    const { port } = await startFakeRedis(0, "::1");
    const service = await startTestService({ REDIS_URL: `redis://[::1]:${port}` });
    await untilUsed(service);
    await service.close();
  });

describe("if Redis is unreachable", () => {
  test("the service starts, answers, and limits rates on its own", async () => {
    const [port] = await freePorts(1);
    const service = await startTestService({ REDIS_URL: `redis://127.0.0.1:${port}` });
    const { testKey } = await service.createProject({ rateLimitPerMinute: 5 });
    expect(await admitted([service], testKey, 8)).toBe(5);
  });

  test("the metric reports it from the start until Redis is there, and when it is gone again", async () => {
    const [port] = await freePorts(1);
    const service = await startTestService({ REDIS_URL: `redis://127.0.0.1:${port}` });
    expect(await lostBy(service)).toBe(1);
    const redis = await startFakeRedis(port);
    await untilUsed(service);
    await redis.close();
    await expect.poll(() => lostBy(service), { timeout: 45_000 }).toBe(1);
  });

  test("each cause of its loss and its return are logged once, however many attempts to reach it fail", async () => {
    const redis = await startFakeRedis();
    const aboutRedis = await startLogged(redis.port);
    redis.refuses = true;
    redis.closeConnections();
    const before = redis.sockets.length;
    await expect.poll(() => redis.sockets.length, { timeout: 45_000 }).toBeGreaterThanOrEqual(before + 3);
    redis.answer = "-READONLY You can't write against a read only replica.\r\n";
    redis.refuses = false;
    const readOnly = "Redis is unavailable: READONLY You can't write against a read only replica.";
    await expect.poll(aboutRedis, { timeout: 45_000 }).toContain(readOnly);
    redis.answer = true;
    await expect.poll(aboutRedis, { timeout: 45_000 }).toContain("Redis is back");
    const said = aboutRedis();
    expect(said[0]).toMatch("Redis is unavailable");
    expect(said.at(-1)).toBe("Redis is back");
    expect(said).toEqual([...new Set(said)]);
  });

  test("with an error that differs each time, a few of them are logged", async () => {
    const redis = await startFakeRedis();
    const aboutRedis = await startLogged(redis.port);
    shortenTimers(1_000);
    redis.scripts = 0;
    redis.onScript = () => {
      redis.answer = `-MOVED ${redis.scripts} 127.0.0.1:7001\r\n`;
    };
    redis.closeConnections();
    await expect.poll(() => redis.scripts, { timeout: 45_000 }).toBeGreaterThanOrEqual(9);
    expect(aboutRedis().length).toBeLessThanOrEqual(5);
  });

  test("again and again soon after each connection, it stays lost, and no cause is logged twice", async () => {
    const redis = await startFakeRedis();
    const aboutRedis = await startLogged(redis.port);
    redis.scripts = 0;
    // Each connection lasts until a quarter of a second after its test.
    redis.onScript = () => setTimeout(redis.closeConnections, 250);
    redis.closeConnections();
    await expect.poll(() => redis.scripts, { timeout: 45_000 }).toBeGreaterThanOrEqual(8);
    const said = aboutRedis();
    expect(said[0]).toMatch("Redis is unavailable");
    expect(said).toEqual([...new Set(said)]);
    expect(said).not.toContain("Redis is back");
  });

  test("for the service's calls, since it answers each too late, it is not taken for usable", async () => {
    const redis = await startFakeRedis();
    const service = await startTestService({ REDIS_URL: `redis://127.0.0.1:${redis.port}` });
    await untilUsed(service);
    redis.lateMs = 600;
    const before = { scripts: redis.scripts, connections: redis.sockets.length };
    redis.closeConnections();
    // Only a test is sent to each new connection, though calls are made after each.
    const { testKey } = await service.createProject();
    await expect
      .poll(
        async () => {
          expect(await admitted([service], testKey, 1)).toBe(1);
          return redis.sockets.length;
        },
        { timeout: 45_000 },
      )
      .toBeGreaterThanOrEqual(before.connections + 4);
    expect(redis.scripts - before.scripts).toBeLessThanOrEqual(redis.sockets.length - before.connections);
    await service.close();
  });

  test.for([
    ["OK, as to a command", "+OK\r\n"],
    ["an empty list", "*0\r\n"],
    ["texts", "*2\r\n$1\r\nA\r\n$1\r\nB\r\n"],
  ])("because what is there answers with %s, rates are limited without it", async ([, answer = ""]) => {
    const redis = await startFakeRedis();
    redis.answer = answer;
    const service = await startTestService({ REDIS_URL: `redis://127.0.0.1:${redis.port}` });
    expect(await lostBy(service)).toBe(1);
    const { testKey } = await service.createProject({ rateLimitPerMinute: 2 });
    expect(await admitted([service], testKey, 4)).toBe(2);
    await service.close();
  });

  test("or stops answering, its connection is closed at the first late answer, and the loss is reported", async () => {
    const redis = await startFakeRedis();
    const service = await startTestService({ REDIS_URL: `redis://127.0.0.1:${redis.port}` });
    await untilUsed(service);
    redis.answer = null;
    // An earlier connection may have been given up for a late answer, and be closed already.
    const open = redis.sockets.filter((socket) => !socket.closed);
    const closed = Promise.all(open.map((socket) => once(socket, "close")));
    const { testKey } = await service.createProject();
    expect(await admitted([service], testKey, 1)).toBe(1);
    expect(await lostBy(service)).toBe(1);
    await closed;
    await service.close();
  });

  test("while no calls are made, that is reported too: it is asked each twenty seconds, so no proxy takes the connection for idle", async () => {
    shortenTimers(20_000);
    const redis = await startFakeRedis();
    const service = await startTestService({ REDIS_URL: `redis://127.0.0.1:${redis.port}` });
    await expect.poll(() => redis.scripts, { timeout: 45_000 }).toBeGreaterThanOrEqual(4);
    redis.answer = null;
    await expect.poll(() => lostBy(service), { timeout: 45_000 }).toBe(1);
    await service.close();
  });

  test("or accepts connections but never answers, calls are served with a local limit", async () => {
    const sockets: net.Socket[] = [];
    const silent = net.createServer((socket) => sockets.push(socket.on("error", () => {})));
    await new Promise<void>((resolve) => silent.listen(0, "127.0.0.1", resolve));
    const { port } = silent.address() as net.AddressInfo;
    const service = await startTestService({ REDIS_URL: `redis://127.0.0.1:${port}` });
    const { testKey } = await service.createProject({ rateLimitPerMinute: 5 });
    expect(await admitted([service], testKey, 8)).toBe(5);
    await service.close();
    for (const socket of sockets) socket.destroy();
    await new Promise((resolve) => silent.close(resolve));
  });
});

test("a process whose event loop is slow, as for lack of CPU, does not take its Redis for late", async () => {
  const redis = await startFakeRedis();
  const service = await startTestService({ REDIS_URL: `redis://127.0.0.1:${redis.port}` });
  await untilUsed(service);
  const { testKey } = await service.createProject();
  const connections = redis.sockets.length;
  // In each turn this runs before the commands of that turn are sent.
  const stall = () => {
    blockFor(300);
    turn = setImmediate(stall);
  };
  let turn = setImmediate(stall);
  try {
    expect(await admitted([service], testKey, 3)).toBe(3);
  } finally {
    clearImmediate(turn);
  }
  expect(await lostBy(service)).toBe(0);
  expect(redis.sockets.length).toBe(connections);
  await service.close();
});

if (redisServer !== undefined)
  describe("processes with one Redis", () => {
    let port: number;
    let redis: ChildProcess;
    let service: TestService;
    let other: TestService;

    const startRedis = async () => {
      redis = spawn(redisServer, ["--bind", "127.0.0.1", "--port", String(port), "--save", ""], {
        stdio: ["ignore", "pipe", "inherit"],
      });
      for await (const line of redis.stdout ?? []) {
        if (/ready to accept connections/i.test(String(line))) break;
      }
    };

    beforeAll(async () => {
      [port = 0] = await freePorts(1);
      await startRedis();
      const settings = { REDIS_URL: `redis://127.0.0.1:${port}/3`, TRUSTED_PROXIES: "127.0.0.1" };
      service = await startTestService(settings);
      other = await service.startAnother();
    });

    afterAll(async () => {
      await service.close();
      redis.kill("SIGKILL");
    });

    /** Repeats if Redis was late for lack of CPU: then each process counts on its own for a second. */
    async function untilShared<T>(count: () => Promise<[counted: T, isShared: boolean]>): Promise<T> {
      return vi.waitUntil(
        async () => {
          const [counted, isShared] = await count();
          return isShared ? counted : undefined;
        },
        { timeout: 120_000, interval: 2_000 },
      );
    }

    test("share a project's limit: of two hundred concurrent calls exactly as many pass as it allows", async () => {
      const [refused, live, read, readAgain] = await untilShared(async () => {
        const { testKey, liveKey } = await service.createProject({ rateLimitPerMinute: 70 });
        const counted = await admitted([service, other], testKey, 200);
        const answers = [
          await merchant(other.httpUrl, testKey).create(),
          await merchant(other.httpUrl, liveKey).create(),
          await merchant(service.httpUrl, testKey).read("vrf_none"),
          await merchant(other.httpUrl, testKey).read("vrf_none"),
        ] as const;
        const lost = [await lostBy(service), await lostBy(other)];
        return [answers, counted === 70 && lost.every((value) => value === 0)];
      });
      expect([refused.status, refused.body.error?.code, usageOf(refused)]).toEqual([
        429,
        "rate_limited",
        null,
      ]);
      expect(refused.headers.get("ratelimit")).toMatch(/^"create";r=0;t=([1-9]|[1-5]\d|60)$/);
      expect(live.headers.get("ratelimit")).toMatch(/;r=69;/);
      expect(read.status).toBe(404);
      expect(readAgain.headers.get("ratelimit")).toMatch(/;r=68;/);
    });

    test("begin a new minute if Redis's clock was set back by an hour", async () => {
      const client = await createClient({ url: `redis://127.0.0.1:${port}/3` }).connect();
      const answers = await untilShared(async () => {
        const { testKey } = await service.createProject({ rateLimitPerMinute: 1 });
        const shop = merchant(service.httpUrl, testKey);
        await shop.create();
        const refused = await shop.create();
        // What a key's time to live becomes then.
        for (const key of await client.keys("phoneproof:calls:*")) await client.pExpire(key, 3_660_000);
        return [[refused, await shop.create(), await shop.create()], (await lostBy(service)) === 0];
      });
      expect(answers.map(({ status }) => status)).toEqual([429, 201, 429]);
      for (const { headers } of answers) expect(Number(headers.get("retry-after"))).toBeLessThanOrEqual(60);
      client.destroy();
    });

    test("count an address's failed authentications together", async () => {
      const shops = [merchant(service.httpUrl, "wrong"), merchant(other.httpUrl, "wrong")];
      let tries = 0;
      const answers = await untilShared(async () => {
        const headers = { "x-forwarded-for": `192.0.2.${++tries}` };
        const calls = Array.from({ length: 620 }, (_, call) =>
          shops[call % 2]?.call("GET", "/v1/verifications/x", { headers }),
        );
        const answers = await Promise.all(calls);
        return [answers, answers.filter((answer) => answer?.status === 401).length === 600];
      });
      expect(answers.filter((answer) => answer?.status === 429)).toHaveLength(20);
    });

    test("count the requests of a window together", async () => {
      await untilShared(async () => {
        const window = await createWindow(service, await service.createProject());
        const { pathname } = new URL(window.url);
        const answers = await Promise.all(
          Array.from({ length: 140 }, (_, call) =>
            getPage(`${call % 2 === 0 ? service.httpUrl : other.httpUrl}${pathname}/status`),
          ),
        );
        return [answers, answers.filter(({ status }) => status === 200).length === 120];
      });
    });

    test("limit on their own while Redis does not answer, and share limits again when it does", async () => {
      const { testKey } = await service.createProject({ rateLimitPerMinute: 10 });
      redis.kill("SIGSTOP");
      expect(await admitted([service], testKey, 15)).toBe(10);
      expect(await admitted([other], testKey, 15)).toBe(10);
      redis.kill("SIGCONT");
      await expectShared();
    });

    test("limit on their own after Redis has died, and share the one started in its place", async () => {
      const { testKey } = await service.createProject({ rateLimitPerMinute: 10 });
      redis.kill("SIGKILL");
      await once(redis, "exit");
      expect(await admitted([service], testKey, 15)).toBe(10);
      expect(await admitted([other], testKey, 15)).toBe(10);
      expect([await lostBy(service), await lostBy(other)]).toEqual([1, 1]);
      await startRedis();
      await expectShared();
      await expect
        .poll(async () => [await lostBy(service), await lostBy(other)], { timeout: 45_000 })
        .toEqual([0, 0]);
    });

    /** A limit used up at one process is used up at the other. */
    async function expectShared(): Promise<void> {
      await expect
        .poll(
          async () => {
            const { testKey } = await service.createProject({ rateLimitPerMinute: 1 });
            return [await admitted([service], testKey, 1), await admitted([other], testKey, 1)];
          },
          { timeout: 45_000, interval: 200 },
        )
        .toEqual([1, 0]);
    }

    test("limit on their own if their user may not use each command of the script", async () => {
      const client = await createClient({ url: `redis://127.0.0.1:${port}` }).connect();
      const user = ["ACL", "SETUSER", "limited", "on", ">word", "~phoneproof:*", "+eval", "+set", "+pttl"];
      await client.sendCommand(user);
      const third = await startTestService({ REDIS_URL: `redis://limited:word@127.0.0.1:${port}` });
      expect(await lostBy(third)).toBe(1);
      await third.close();
      await client.sendCommand([...user, "+incrby", "+expire"]);
      const fourth = await startTestService({ REDIS_URL: `redis://limited:word@127.0.0.1:${port}` });
      await untilUsed(fourth);
      await fourth.close();
      client.destroy();
    });

    test("limit on their own while Redis refuses writes", async () => {
      const { testKey } = await service.createProject({ rateLimitPerMinute: 3 });
      const asked = net.connect(port, "127.0.0.1");
      asked.write("REPLICAOF 127.0.0.1 1\r\n");
      await once(asked, "data");
      expect(await admitted([service], testKey, 5)).toBe(3);
      expect(await admitted([other], testKey, 5)).toBe(3);
      asked.write("REPLICAOF NO ONE\r\n");
      await once(asked, "data");
      asked.destroy();
      await expectShared();
    });
  });
