/**
 * `node bench/processes.ts [rounds]`: measures creations through one, two and four processes on one Postgres, in one project
 * and in a hundred. Fails if there was a deadlock, or if the usage counts do not exactly match the answered calls.
 */

import { randomBytes } from "node:crypto";
import { mkdir, readFile, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import pg from "pg";
import { startEmbeddedPostgres } from "../src/storage/embedded/embedded-postgres.ts";
import { ChildProgram } from "./child.ts";
import { type Endings, runCounted } from "./endings.ts";
import { startFleet } from "./fleet.ts";
import { HttpLoad } from "./http-load.ts";
import { type LockWaits, together, watchLocks } from "./lock-waits.ts";
import type { Arm } from "./operations.ts";
import { type CpuClock, postgresClock, processClock } from "./process-cpu.ts";
import { reportProgress } from "./progress.ts";
import { databaseUrlOf, type ReadyService } from "./ready-service.ts";
import { machine, machineLine } from "./report.ts";
import { type MerchantRequests, merchantRequests } from "./requests.ts";
import { type ArmFigures, measureInTurn } from "./rounds.ts";
import { administer, type BenchProject, readPostmaster } from "./service.ts";

const connections = 64;
const secondsPerRound = 2;
/** All processes run throughout; the load goes to this many of them. */
const processCounts = [1, 2, 4] as const;
const manyProjects = 100;
const created = 201;
/** Lock waits of at least this duration are written to Postgres's log. The default is one second. */
const lockWaitMs = 100;
/** Postgres's processes report their statistics, deadlocks among them, at most once a second. */
const statisticsMs = 1_000;
const resultFile = path.join(import.meta.dirname, "results/processes.json");

interface Bench {
  readonly processes: readonly ReadyService[];
  readonly database: pg.Client;
  readonly postgresCpu: CpuClock;
}

/** A project and the number of creations sent for it. The run ends if any is not answered 201. */
interface Merchant {
  readonly projectId: string;
  readonly requests: readonly MerchantRequests[];
  creations: number;
}

interface Workload {
  readonly name: string;
  readonly figures: readonly ArmFigures[];
  readonly locks: readonly LockWaits[];
}

async function startPostgres(directory: string, endings: Endings) {
  const dataDir = path.join(directory, "data");
  const postgres = await startEmbeddedPostgres({
    dataDir,
    transport: "tcp",
    settings: { log_lock_waits: "on", deadlock_timeout: `${lockWaitMs}ms` },
  });
  endings.add(() => postgres.stop());
  const { pid } = await readPostmaster(dataDir);
  const keeper = new ChildProgram("keeper.ts", [String(pid), directory]);
  endings.add(() => keeper.close());
  const database = new pg.Client({ ...postgres.connection, application_name: "phoneproof-bench" });
  database.on("error", () => {});
  await database.connect();
  endings.add(() => database.end());
  return {
    database,
    url: databaseUrlOf(postgres.connection),
    postgresCpu: postgresClock(pid),
    async lockWaits() {
      const log = await readFile(path.join(dataDir, "postgres.log"), "utf8");
      return log.match(/still waiting for|deadlock detected/g)?.length ?? 0;
    },
  };
}

const merchantOf = ({ id, keys }: Pick<BenchProject, "id" | "keys">): Merchant => ({
  projectId: id,
  requests: [merchantRequests(keys.live), merchantRequests(keys.test)],
  creations: 0,
});

/** A creation for each merchant in turn, alternating between the environments. */
function creationsOf(merchants: readonly Merchant[]): () => string {
  let turn = 0;
  return () => {
    const merchant = merchants[turn % merchants.length] as Merchant;
    const inTurn = Math.floor(turn++ / merchants.length) % merchant.requests.length;
    merchant.creations += 1;
    return (merchant.requests[inTurn] as MerchantRequests).create();
  };
}

async function measure(bench: Bench, name: string, merchants: readonly Merchant[], rounds: number) {
  const next = creationsOf(merchants);
  const locks: LockWaits[][] = [];
  let answers = 0;
  const arms = processCounts.map((count): Arm => {
    const used = bench.processes.slice(0, count);
    const clocks = used.map(({ pid }) => processClock(pid));
    const seen: LockWaits[] = [];
    locks.push(seen);
    let load: HttpLoad | undefined;
    return {
      name: `${count} process${count === 1 ? "" : "es"}`,
      cpu: () => clocks.reduce((sum, cpu) => sum + (cpu() ?? Number.NaN), 0),
      postgresCpu: bench.postgresCpu,
      prepare: async () => {
        // Opened only before the arm's first round: the service closes connections that send nothing for ten seconds.
        load ??= await HttpLoad.open(
          used.map(({ httpPort }) => httpPort),
          connections,
        );
        await bench.database.query("ANALYZE");
      },
      run: async (milliseconds) => {
        const { result, locks: waits } = await watchLocks(bench.database, async () =>
          load?.run({ status: created, next, milliseconds }),
        );
        if (result === undefined) throw new Error("a round was not prepared");
        seen.push(waits);
        answers += result.answers;
        return result;
      },
      close: () => load?.close(),
    };
  });
  try {
    const figures = await measureInTurn(arms, { rounds, seconds: secondsPerRound });
    await checkUsage(bench.database, merchants, answers);
    return { name, figures, locks: locks.map(together) };
  } finally {
    for (const arm of arms) arm.close();
  }
}

/** Verifies that every call was counted once, in its own project. */
async function checkUsage(
  database: pg.Client,
  merchants: readonly Merchant[],
  answers: number,
): Promise<void> {
  const { rows } = await database.query<{ project_id: string; calls: number }>(
    "SELECT project_id::text, sum(calls)::float8 AS calls FROM usage GROUP BY project_id",
  );
  const counted = new Map(rows.map(({ project_id, calls }) => [project_id, calls]));
  const sent = merchants.reduce((sum, { creations }) => sum + creations, 0);
  if (sent !== answers) throw new Error(`${sent} creations were sent, and ${answers} answered 201`);
  for (const { projectId, creations } of merchants) {
    const calls = counted.get(projectId) ?? 0;
    if (calls !== creations) {
      throw new Error(
        `usage is not exact: ${creations} calls were answered 201, and ${calls} counted (${projectId})`,
      );
    }
  }
}

async function deadlocksIn(database: pg.Client): Promise<number> {
  const { rows } = await database.query<{ deadlocks: number }>(
    "SELECT sum(deadlocks)::float8 AS deadlocks FROM pg_stat_database",
  );
  return rows[0]?.deadlocks ?? Number.NaN;
}

function table(workloads: readonly Workload[]): string {
  const row = (cells: readonly string[]) =>
    cells.map((cell, index) => (index < 2 ? cell.padEnd(13) : cell.padStart(9))).join("");
  const micro = (value: number | null) => (value === null ? "–" : value.toFixed(0));
  const lines = workloads.flatMap(({ name, figures, locks }) =>
    figures.map(({ arm, medians }, index) => {
      const { samples, waiting, mostAtOnce } = locks[index] ?? together([]);
      return row([
        index === 0 ? name : "",
        arm,
        Math.round(medians.perSecond).toLocaleString("en"),
        medians.p50Ms.toFixed(1),
        medians.p99Ms.toFixed(1),
        micro(medians.serverCpu),
        micro(medians.postgresCpu),
        medians.others === null ? "–" : `${Math.round(medians.others * 100)} %`,
        (waiting / samples).toFixed(2),
        String(mostAtOnce),
      ]);
    }),
  );
  return [
    `${" ".repeat(54)}CPU µs per create${" ".repeat(10)}waiting for a lock`,
    row(["", "", "create/s", "p50 ms", "p99 ms", "servers", "Postgres", "others", "mean", "most"]),
    ...lines,
  ].join("\n");
}

async function bench(rounds: number, endings: Endings): Promise<void> {
  const loadBefore = os.loadavg()[0] ?? 0;
  const directory = await endings.directory();
  reportProgress("starting");
  const { database, url, postgresCpu, lockWaits } = await startPostgres(directory, endings);
  const adminToken = randomBytes(24).toString("base64url");
  const processes = await startFleet(
    Math.max(...processCounts),
    { databaseUrl: url, adminToken },
    directory,
    endings,
  );
  reportProgress("creating projects");
  const administration = administer(processes[0]?.grpcAddress ?? "", adminToken);
  const hot = merchantOf(await administration.createProject("000"));
  const many: Merchant[] = [];
  while (many.length < manyProjects) {
    const lastDigits = String(many.length + 1).padStart(3, "0");
    many.push(merchantOf(await administration.createProject(lastDigits)));
  }
  const workloads: Workload[] = [];
  for (const [name, merchants] of [
    ["hot project", [hot]],
    [`${manyProjects} projects`, many],
  ] as const) {
    reportProgress(name);
    workloads.push(await measure({ processes, database, postgresCpu }, name, merchants, rounds));
  }
  await delay(statisticsMs);
  const deadlocks = await deadlocksIn(database);
  const { rows } = await database.query<{ server_version: string }>("SHOW server_version");
  const on = machine(rows[0]?.server_version ?? "unknown", loadBefore);
  const creations = [hot, ...many].reduce((sum, merchant) => sum + merchant.creations, 0);
  reportProgress("done");
  process.stdout.write(
    `${machineLine(on)}\n${connections} connections, medians of ${rounds} rounds of ${secondsPerRound} s\n\n` +
      `${table(workloads)}\n\n` +
      `${deadlocks} deadlocks; ${await lockWaits()} waits for a lock took ${lockWaitMs} ms or longer; ` +
      `usage exact: ${creations.toLocaleString("en")} calls answered 201 and counted\n`,
  );
  await mkdir(path.dirname(resultFile), { recursive: true });
  await writeFile(resultFile, `${JSON.stringify({ machine: on, workloads, deadlocks }, null, 2)}\n`);
  if (deadlocks !== 0) throw new Error(`there were ${deadlocks} deadlocks`);
}

await runCounted({ usage: "processes.ts [rounds]", usual: 5 }, bench);
