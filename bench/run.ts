/** `npm run bench`: compares the service with the same server without any work behind it, and with its database alone. */

import { mkdir, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import type { BareAddresses } from "./bare-server.ts";
import { ChildProgram } from "./child.ts";
import type { DatabaseLoopAnswer, DatabaseLoopRequest } from "./database-loop.ts";
import { type Endings, runToItsEnd } from "./endings.ts";
import { type GrowthFigures, growthTable, measureGrowth } from "./growth.ts";
import { guard } from "./guard.ts";
import { type MemoryFigures, measureMemory, memoryLine } from "./memory.ts";
import { type ArrivalFigures, measureArrivals } from "./open-loop.ts";
import { type Arm, openArms, operationNames, pendingThroughout, type Subjects } from "./operations.ts";
import { allRows, type Options, parseOptions, usage } from "./options.ts";
import { PendingVerifications } from "./pending-verifications.ts";
import { drawPlots } from "./plot.ts";
import { arrivalPlots, growthPlots } from "./plots.ts";
import { reportProgress } from "./progress.ts";
import { type Machine, machine, machineLine, type Report, reportOn, table } from "./report.ts";
import { type ArmFigures, measureInTurn } from "./rounds.ts";
import { startService } from "./service.ts";
import { measureStarts } from "./start-time.ts";

const connections = 64;

interface LongReport {
  readonly machine: Machine;
  readonly growth: readonly GrowthFigures[];
  readonly memory: MemoryFigures;
}

async function openSubjects(directory: string, options: Options, endings: Endings): Promise<Subjects> {
  const execArgv =
    options.profile === undefined ? [] : ["--cpu-prof", `--cpu-prof-dir=${path.resolve(options.profile)}`];
  const service = await startService(directory, { execArgv });
  endings.add(service.close);
  const bare = new ChildProgram<never, BareAddresses>("bare-server.ts");
  endings.add(() => bare.close());
  const databaseLoop = new ChildProgram<DatabaseLoopRequest, DatabaseLoopAnswer>("database-loop.ts");
  endings.add(() => databaseLoop.close());
  return {
    service,
    bare: { addresses: await bare.nextMessage(), pid: bare.pid },
    databaseLoop,
    pending: new PendingVerifications(service.database, service.project),
    connections,
  };
}

async function bench(options: Options, endings: Endings): Promise<Report> {
  const loadBefore = os.loadavg()[0] ?? 0;
  const directory = await endings.directory();
  reportProgress("start");
  const starts = await measureStarts(directory, endings);
  reportProgress("starting");
  const subjects = await openSubjects(directory, options, endings);
  reportProgress("creating pending verifications");
  await subjects.pending.take(0, pendingThroughout);
  const operations: Report["operations"][number][] = [];
  for (const operation of options.only) {
    reportProgress(operation);
    const arms = await openArms[operation](subjects);
    const figures = await measureInTurn(arms, options);
    const arrivals = options.guard ? [] : await arrivalsOf(arms, figures);
    operations.push(reportOn(operation, figures, arrivals));
    for (const arm of arms) arm.close();
  }
  return {
    madeAt: new Date().toISOString(),
    machine: machine(await postgresVersion(subjects), loadBefore),
    rounds: options.rounds,
    secondsPerRound: options.seconds,
    connections,
    pendingVerifications: pendingThroughout,
    starts,
    operations,
  };
}

/** Measurements that take longer than a quarter of an hour. */
async function benchLong(options: Options, endings: Endings): Promise<LongReport> {
  const loadBefore = os.loadavg()[0] ?? 0;
  const directory = await endings.directory();
  reportProgress("starting");
  const subjects = await openSubjects(directory, options, endings);
  await subjects.pending.take(0, pendingThroughout);
  const sizes = growthSizes.filter((size) => size < options.rows);
  const growth = await measureGrowth(
    subjects,
    { ...options, sizes: [...sizes, options.rows] },
    reportProgress,
  );
  const memory = await measureMemory(subjects, options.minutes, reportProgress);
  return { machine: machine(await postgresVersion(subjects), loadBefore), growth, memory };
}

const growthSizes = [10_000, 100_000, 1_000_000];

async function postgresVersion({ service }: Subjects): Promise<string> {
  const { rows } = await service.database.query<{ server_version: string }>("SHOW server_version");
  return rows[0]?.server_version ?? "unknown";
}

async function arrivalsOf(arms: readonly Arm[], figures: readonly ArmFigures[]): Promise<ArrivalFigures[]> {
  const service = arms.find(({ name }) => name === "service");
  const most = figures.find(({ arm }) => arm === "service")?.medians.perSecond;
  return service === undefined || most === undefined ? [] : measureArrivals(service, most);
}

async function reportShort(report: Report, { guard: guarding, only }: Options): Promise<void> {
  reportProgress("done");
  if (guarding) {
    const { lines, holds } = guard(report);
    process.stdout.write(`${lines.join("\n")}\n`);
    if (!holds) process.exitCode = 1;
    return;
  }
  process.stdout.write(table(report));
  await keep("latest", report);
  // A run of only some operations must not overwrite the plot of all.
  if (only.length === operationNames.length) {
    await drawPlots(path.join(documents, "performance-arrivals.svg"), arrivalPlots(report));
  }
}

async function reportLong(report: LongReport, { rows }: Options): Promise<void> {
  reportProgress("done");
  process.stdout.write(
    `${machineLine(report.machine)}\n\n${growthTable(report.growth)}\n\n${memoryLine(report.memory)}\n`,
  );
  await keep("latest-long", report);
  // Nor must one on fewer rows that of all.
  if (rows === allRows) {
    await drawPlots(path.join(documents, "performance-rows.svg"), growthPlots(report.growth));
  }
}

const documents = path.join(import.meta.dirname, "../docs");
const results = path.join(import.meta.dirname, "results");

async function keep(name: string, report: object): Promise<void> {
  await mkdir(results, { recursive: true });
  await writeFile(path.join(results, `${name}.json`), `${JSON.stringify(report, null, 2)}\n`);
}

function givenOptions(): Options | undefined {
  try {
    return parseOptions(process.argv.slice(2));
  } catch (error) {
    process.stderr.write(`${(error as Error).message}\n${usage}\n`);
    process.exitCode = 2;
    return undefined;
  }
}

const options = givenOptions();
if (options !== undefined) {
  await runToItsEnd(async (endings) => {
    if (options.long) await reportLong(await benchLong(options, endings), options);
    else await reportShort(await bench(options, endings), options);
  });
}
