/**
 * `node bench/standby.ts [rounds]`: measures what a synchronous standby costs, whose answers take 4 ms: creations as fast as 256
 * connections get them, and creations and cancels at 400 a second, through one process and through four, in 32 projects.
 */

import { randomBytes } from "node:crypto";
import os from "node:os";
import { setTimeout as delay } from "node:timers/promises";
import pg from "pg";
import { encodeId } from "../src/core/ids.ts";
import { startPair } from "../test/faults/standby.ts";
import { ChildProgram } from "./child.ts";
import { type Endings, runCounted } from "./endings.ts";
import { startFleet } from "./fleet.ts";
import { HttpLoad } from "./http-load.ts";
import type { Arm, ArmName } from "./operations.ts";
import { postgresClock, processClock } from "./process-cpu.ts";
import { reportProgress } from "./progress.ts";
import { databaseUrlOf, type ReadyService } from "./ready-service.ts";
import { machine, machineLine } from "./report.ts";
import { type MerchantRequests, merchantRequests } from "./requests.ts";
import { type ArmFigures, measureInTurn } from "./rounds.ts";
import { administer } from "./service.ts";

const roundTripMs = 4;
const connections = 256;
const perSecond = 400;
const secondsPerRound = 2;
const processCounts = [1, 4] as const;
const projectCount = 32;
const created = 201;
const ok = 200;

interface Bench {
  readonly processes: readonly ReadyService[];
  readonly database: pg.Client;
  readonly postgresPid: number;
  readonly merchants: ReadonlyMap<string, MerchantRequests>;
}

type Operation = "creations at most" | "creations" | "cancels";

async function setStandby(database: pg.Client, names: "" | "*"): Promise<void> {
  await database.query(`ALTER SYSTEM SET synchronous_standby_names = '${names}'`);
  await database.query("SELECT pg_reload_conf()");
  const expected = names === "" ? "async" : "sync";
  for (;;) {
    const { rows } = await database.query<{ state: string }>(
      "SELECT sync_state AS state FROM pg_stat_replication",
    );
    if (rows[0]?.state === expected) return;
    await delay(20);
  }
}

/** Pending verifications as requests to cancel them, in random order. */
async function cancelsOf({ database, merchants }: Bench, count: number): Promise<string[]> {
  const { rows } = await database.query<{ id: string; project: string }>(
    `SELECT id::text, project_id::text AS project FROM verification
     WHERE status = 'pending' ORDER BY random() LIMIT $1`,
    [count],
  );
  if (rows.length < count) throw new Error(`only ${rows.length} verifications are pending`);
  return rows.map(({ id, project }) => merchants.get(project)?.cancel(encodeId("vrf_", id)) ?? "");
}

function armsOf(bench: Bench, operation: Operation): Arm[] {
  const inTurn = [...bench.merchants.values()];
  let turn = 0;
  const creation = () => (inTurn[turn++ % inTurn.length] as MerchantRequests).create();
  return processCounts.flatMap((count) =>
    (["", "*"] as const).map((names): Arm => {
      const used = bench.processes.slice(0, count);
      const clocks = used.map(({ pid }) => processClock(pid));
      const name: ArmName = `${count} process${count === 1 ? "" : "es"}`;
      return {
        name: names === "" ? name : `${name}, standby`,
        cpu: () => clocks.reduce((sum, cpu) => sum + (cpu() ?? Number.NaN), 0),
        postgresCpu: postgresClock(bench.postgresPid),
        async run(milliseconds) {
          const cancels =
            operation === "cancels" ? await cancelsOf(bench, (perSecond * milliseconds) / 1000) : [];
          await setStandby(bench.database, names);
          const load = await HttpLoad.open(
            used.map(({ httpPort }) => httpPort),
            connections,
          );
          try {
            if (operation === "cancels")
              return await load.pace({ status: ok, next: () => cancels.pop(), milliseconds }, perSecond);
            const round = { status: created, next: creation, milliseconds };
            return await (operation === "creations" ? load.pace(round, perSecond) : load.run(round));
          } finally {
            load.close();
          }
        },
        close() {},
      };
    }),
  );
}

function table(figures: ReadonlyMap<Operation, readonly ArmFigures[]>): string {
  const row = (cells: readonly string[]) =>
    cells.map((cell, index) => (index === 0 ? cell.padEnd(22) : cell.padStart(12))).join("");
  const of = (operation: Operation, index: number) => figures.get(operation)?.[index]?.medians;
  const ms = (value: number | undefined) => (value ?? Number.NaN).toFixed(1);
  const names = figures.get("creations")?.map(({ arm }) => arm) ?? [];
  return [
    row([
      "",
      "at most",
      "",
      `${perSecond} creations a second`.padStart(24),
      "",
      `${perSecond} cancels a second`.padStart(24),
    ]),
    row(["", "create/s", "p50 ms", "p50 ms", "p99 ms", "p50 ms", "p99 ms"]),
    ...names.map((name, index) => {
      const most = of("creations at most", index);
      const steady = of("creations", index);
      const cancels = of("cancels", index);
      return row([
        name,
        Math.round(most?.perSecond ?? Number.NaN).toLocaleString("en"),
        ms(most?.p50Ms),
        ms(steady?.p50Ms),
        ms(steady?.p99Ms),
        ms(cancels?.p50Ms),
        ms(cancels?.p99Ms),
      ]);
    }),
  ].join("\n");
}

async function bench(rounds: number, endings: Endings): Promise<void> {
  const loadBefore = os.loadavg()[0] ?? 0;
  const directory = await endings.directory();
  reportProgress("starting");
  const { primary, standby } = await startPair(directory, {}, async (primaryPort) => {
    const proxy = new ChildProgram<never, number>("delaying-proxy.ts", [
      String(primaryPort),
      String(roundTripMs / 2),
    ]);
    endings.add(() => proxy.close());
    return proxy.nextMessage();
  });
  endings.add(() => Promise.all([standby.stop(), primary.stop()]));
  const [postgresPid = 0] = await primary.pids();
  const database = new pg.Client({ ...primary.connection, application_name: "phoneproof-bench" });
  database.on("error", () => {});
  await database.connect();
  endings.add(() => database.end());
  await setStandby(database, "");
  const adminToken = randomBytes(24).toString("base64url");
  const databaseUrl = databaseUrlOf(primary.connection);
  const processes = await startFleet(
    Math.max(...processCounts),
    { databaseUrl, adminToken },
    directory,
    endings,
  );
  reportProgress("creating projects");
  const administration = administer(processes[0]?.grpcAddress ?? "", adminToken);
  const merchants = new Map<string, MerchantRequests>();
  while (merchants.size < projectCount) {
    const { id, keys } = await administration.createProject(String(merchants.size).padStart(3, "0"));
    merchants.set(id, merchantRequests(keys.live));
  }
  const subject = { processes, database, postgresPid, merchants };
  const figures = new Map<Operation, ArmFigures[]>();
  for (const operation of ["creations at most", "creations", "cancels"] as const) {
    reportProgress(operation);
    figures.set(
      operation,
      await measureInTurn(armsOf(subject, operation), { rounds, seconds: secondsPerRound }),
    );
  }
  const { rows } = await database.query<{ server_version: string }>("SHOW server_version");
  reportProgress("done");
  process.stdout.write(
    `${machineLine(machine(rows[0]?.server_version ?? "unknown", loadBefore))}\n` +
      `${connections} connections, ${projectCount} projects, medians of ${rounds} rounds of ${secondsPerRound} s; ` +
      `the standby answers after ${roundTripMs} ms\n\n${table(figures)}\n`,
  );
}

await runCounted({ usage: "standby.ts [rounds]", usual: 5 }, bench);
