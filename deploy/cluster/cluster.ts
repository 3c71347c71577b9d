/**
 * Two processes with role api and two with role worker, behind HAProxy and in front of PgBouncer, with a primary and its
 * synchronous standby: all on one machine, to try out upgrades and the failure of the primary.
 */

import { randomBytes } from "node:crypto";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { newCredential } from "../../src/core/credential.ts";
import { chooseLaunch } from "../../src/storage/embedded/postgres-launch.ts";
import { startBalancer } from "./balancer.ts";
import { startPooler } from "./pooler.ts";
import { freePorts } from "./ports.ts";
import { createPostgresServers, type PostgresServer } from "./postgres.ts";
import { endProcess, startProcess } from "./processes.ts";
import type { Programs } from "./programs.ts";
import { type ServiceProcess, startServiceProcess } from "./service-process.ts";

export interface Cluster {
  readonly directory: string;
  /** `host:port` */
  readonly grpcAddress: string;
  /** What runs where, one line each. */
  describe(): Promise<string[]>;
  /** Restarts every process of the service, one after the other. */
  roll(): Promise<void>;
  /** Kills the primary and promotes the standby. */
  failOver(): Promise<void>;
  /** Gives a primary without a running standby a new one, in the place of the server that ended. */
  rejoin(): Promise<void>;
  /** Stops everything that was started and removes its files. */
  stop(): Promise<void>;
}

/** An operation that is not possible in the cluster's current state. */
export class NotNow extends Error {}

export interface ClusterOptions {
  readonly programs: Programs;
  readonly httpPort: number;
  readonly grpcPort: number;
  /** Undefined: a new one is generated. */
  readonly adminToken: string | undefined;
  readonly logLevel: string;
  /** Called with each step as it happens. */
  readonly tell: (step: string) => void;
}

const serviceProcesses = { api1: "api", api2: "api", worker1: "worker", worker2: "worker" } as const;
const otherPorts = 4;

export async function startCluster(options: ClusterOptions): Promise<Cluster> {
  const directory = await mkdtemp(path.join(os.tmpdir(), "phoneproof-cluster-"));
  /** Cleanup functions, run in reverse order. */
  const endings = [() => rm(directory, { recursive: true, force: true, maxRetries: 5 })];
  const stop = async () => {
    for (const end of endings.splice(0).reverse()) await end();
  };
  try {
    return { ...(await start(options, directory, (end) => endings.push(end))), stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

async function start(
  options: ClusterOptions,
  directory: string,
  atTheEnd: (end: () => Promise<void>) => void,
): Promise<Omit<Cluster, "stop">> {
  const { programs, tell } = options;
  const logFile = (name: string) => path.join(directory, "log", `${name}.log`);
  await mkdir(path.join(directory, "log"));
  const password = randomBytes(16).toString("hex");
  const adminToken = options.adminToken ?? newCredential("svc");
  await writeFile(path.join(directory, "admin-token"), `${adminToken}\n`, { mode: 0o600 });
  const launch = await chooseLaunch(path.join(programs.postgres, "postgres"), directory);
  const ports = await freePorts(otherPorts + 3 * Object.keys(serviceProcesses).length);
  const port = () => ports.pop() ?? 0;

  const servers = createPostgresServers({ directory, binaries: programs.postgres, launch, password });
  let primary = await servers.create("a", port());
  atTheEnd(() => primary.stop());
  tell(`Postgres a is the primary, pid ${primary.pid}`);
  let standby: PostgresServer | undefined = await servers.follow(primary, "b", port());
  atTheEnd(async () => standby?.stop());
  tell(`Postgres b is its synchronous standby, pid ${standby.pid}`);

  const redis = programs.redis === undefined ? undefined : startRedis(programs.redis, port());
  const pooler = await startPooler({
    directory,
    binary: programs.pgbouncer,
    launch,
    password,
    port: port(),
    primaryPort: primary.port,
  });
  atTheEnd(() => pooler.stop());

  const processes = Object.entries(serviceProcesses).map(([name, role]) =>
    startServiceProcess({
      name,
      role,
      ports: { httpPort: port(), grpcPort: port(), opsPort: port() },
      settings: {
        ...pooler.settings,
        DATABASE_POOL_SIZE: "8",
        REDIS_URL: redis?.url ?? "",
        TRUSTED_PROXIES: "127.0.0.1",
        PUBLIC_BASE_URL: `http://localhost:${options.httpPort}`,
        PHONEPROOF_ADMIN_TOKEN: adminToken,
        LOG_LEVEL: options.logLevel,
      },
      logFile: logFile(name),
      tell,
    }),
  );
  atTheEnd(async () => {
    await Promise.all(processes.map((one) => one.end()));
  });
  const serving = processes.filter(({ role }) => role === "api");
  const balancer = await startBalancer({
    directory,
    binary: programs.haproxy,
    httpPort: options.httpPort,
    grpcPort: options.grpcPort,
    backends: serving,
  });
  atTheEnd(() => balancer.stop());
  await allReady();
  tell("two processes with role api and two with role worker are ready");

  function startRedis(binary: string, redisPort: number): { readonly url: string; readonly pid: number } {
    const args = ["--bind", "127.0.0.1", "--port", String(redisPort), "--save", "", "--dir", directory];
    const started = startProcess({ file: binary, args }, logFile("redis"));
    atTheEnd(() => endProcess(started, [["SIGTERM", 3_000]]));
    return { url: `redis://127.0.0.1:${redisPort}`, pid: started.pid };
  }

  function runningStandby(): PostgresServer | undefined {
    return standby?.runs() ? standby : undefined;
  }

  async function allReady(): Promise<void> {
    await Promise.all(processes.map((one) => one.ready()));
    for (const { name } of serving) await balancer.admit(name);
  }

  async function replace(one: ServiceProcess): Promise<void> {
    if (one.role === "api") {
      await balancer.drain(one.name);
      tell(`${one.name}: HAProxy sends it no new calls, and its calls are answered`);
    }
    const pid = one.pid();
    const began = Date.now();
    tell(`${one.name}: SIGTERM to pid ${pid}, ended with ${await one.end()} after ${Date.now() - began} ms`);
    one.start();
    await one.ready();
    tell(`${one.name}: ready again as pid ${one.pid()}, ${Date.now() - began} ms after the signal`);
    if (one.role === "api") {
      await balancer.admit(one.name);
      tell(`${one.name}: HAProxy sends to it again`);
    }
  }

  return {
    directory,
    grpcAddress: `127.0.0.1:${options.grpcPort}`,

    async describe() {
      const [followed] = await primary.query("SELECT sync_state, state FROM pg_stat_replication");
      const follower = runningStandby();
      const { hostname, port: pooled, pathname } = new URL(pooler.settings.DATABASE_URL ?? "");
      return [
        `merchants   http://127.0.0.1:${options.httpPort}`,
        `gRPC        127.0.0.1:${options.grpcPort}`,
        `HAProxy     pid ${balancer.pid}, takes commands on ${balancer.socket}`,
        ...processes.map((one) => {
          const faces = one.role === "api" ? `, HTTP ${one.httpPort}, gRPC ${one.grpcPort}` : "";
          return `${one.name.padEnd(11)} pid ${one.pid()}, operations ${one.opsPort}${faces}`;
        }),
        `PgBouncer   pid ${pooler.pid}, ${hostname}:${pooled}${pathname}`,
        `primary     Postgres ${primary.name}, pid ${primary.pid}, port ${primary.port}`,
        follower === undefined
          ? `standby     none: ${standby === undefined ? "acknowledged data is on one disk only" : "every commit waits for one, so rejoin"}`
          : `standby     Postgres ${follower.name}, pid ${follower.pid}, port ${follower.port}: ${followed?.sync_state ?? "not connected"}`,
        redis === undefined
          ? "Redis       not installed: each process enforces rate limits on its own"
          : `Redis       pid ${redis.pid}, ${redis.url}`,
        `files       ${directory}, with all logs in log/`,
      ];
    },

    async roll() {
      for (const one of processes) await replace(one);
    },

    async failOver() {
      const next = runningStandby();
      if (next === undefined) throw new NotNow("there is no standby: rejoin first");
      const began = Date.now();
      const since = () => `${Date.now() - began} ms after the kill`;
      await primary.kill();
      tell(`Postgres ${primary.name}: SIGKILL to pid ${primary.pid}`);
      await servers.promote(next);
      primary = next;
      standby = undefined;
      tell(`Postgres ${next.name}: promoted, ${since()}`);
      await pooler.pointAt(next.port);
      tell(`PgBouncer: pointed at Postgres ${next.name}, ${since()}`);
      await allReady();
      tell(`all processes are ready and HAProxy sends to them, ${since()}`);
    },

    async rejoin() {
      if (runningStandby() !== undefined) throw new NotNow("there is a standby already");
      const name = primary.name === "a" ? "b" : "a";
      const [free = 0] = await freePorts(1);
      standby = await servers.follow(primary, name, free);
      tell(`Postgres ${name}: copied from ${primary.name}, now its synchronous standby, pid ${standby.pid}`);
    },
  };
}
