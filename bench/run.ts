/** `npm run bench`: the service beside the same server with nothing behind it, and beside its database alone. */

import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import os from "node:os";
import path from "node:path";
import type { BareAddresses } from "./bare-server.ts";
import { Talker } from "./child.ts";
import type { DatabaseLoopAnswer, DatabaseLoopRequest } from "./database-loop.ts";
import { openArms, pendingThroughout, type Subjects } from "./operations.ts";
import { type Options, parseOptions, usage } from "./options.ts";
import { PendingVerifications } from "./pending-verifications.ts";
import { machine, type Report, reportOn, table } from "./report.ts";
import { measureInTurn } from "./rounds.ts";
import { startService } from "./service.ts";

const connections = 64;
const resultFile = path.join(import.meta.dirname, "results/latest.json");

/** Ended in reverse order, once, however the run ends. */
const closers: (() => Promise<void> | void)[] = [];
let closing: Promise<void> | undefined;

function closeAll(): Promise<void> {
  closing ??= (async () => {
    for (const close of closers.toReversed()) {
      try {
        await close();
      } catch (error) {
        process.stderr.write(`something did not end cleanly: ${(error as Error).message}\n`);
      }
    }
  })();
  return closing;
}

async function openSubjects(options: Options): Promise<Subjects> {
  const directory = await mkdtemp(path.join(os.tmpdir(), "phoneproof-bench-"));
  closers.push(() => rm(directory, { recursive: true, force: true, maxRetries: 3 }));
  const execArgv =
    options.profile === undefined ? [] : ["--cpu-prof", `--cpu-prof-dir=${path.resolve(options.profile)}`];
  const service = await startService(directory, { execArgv });
  closers.push(service.close);
  const bare = new Talker<never, BareAddresses>("bare-server.ts");
  closers.push(() => bare.close());
  const databaseLoop = new Talker<DatabaseLoopRequest, DatabaseLoopAnswer>("database-loop.ts");
  closers.push(() => databaseLoop.close());
  return {
    service,
    bare: { addresses: await bare.heard(), pid: bare.pid },
    databaseLoop,
    pending: new PendingVerifications(service.database, service.project),
    connections,
  };
}

async function bench(options: Options): Promise<Report> {
  const loadBefore = os.loadavg()[0] ?? 0;
  tell("starting");
  const subjects = await openSubjects(options);
  tell("making pending verifications");
  await subjects.pending.take(0, pendingThroughout);
  const operations: Report["operations"][number][] = [];
  for (const operation of options.only) {
    tell(operation);
    const arms = await openArms[operation](subjects);
    operations.push(reportOn(operation, await measureInTurn(arms, options)));
    for (const arm of arms) arm.close();
  }
  const { rows } = await subjects.service.database.query<{ server_version: string }>("SHOW server_version");
  return {
    madeAt: new Date().toISOString(),
    machine: machine(rows[0]?.server_version ?? "unknown", loadBefore),
    rounds: options.rounds,
    secondsPerRound: options.seconds,
    connections,
    pendingVerifications: pendingThroughout,
    operations,
  };
}

const startedAt = performance.now();

/** Progress is no result: it goes beside it. */
function tell(what: string): void {
  const seconds = Math.round((performance.now() - startedAt) / 1000);
  process.stderr.write(`${String(seconds).padStart(4)} s  ${what}\n`);
}

async function main(): Promise<void> {
  let options: Options;
  try {
    options = parseOptions(process.argv.slice(2));
  } catch (error) {
    process.stderr.write(`${(error as Error).message}\n${usage}\n`);
    process.exitCode = 2;
    return;
  }
  for (const [signal, code] of [
    ["SIGINT", 130],
    ["SIGTERM", 143],
    ["SIGHUP", 129],
  ] as const) {
    process.once(signal, () => {
      tell("ending");
      closeAll().then(() => process.exit(code));
    });
  }
  process.once("uncaughtException", (error) => {
    process.stderr.write(`the bench failed: ${error.stack}\n`);
    closeAll().then(() => process.exit(1));
  });
  try {
    const report = await bench(options);
    tell("done");
    process.stdout.write(table(report));
    await mkdir(path.dirname(resultFile), { recursive: true });
    await writeFile(resultFile, `${JSON.stringify(report, null, 2)}\n`);
  } catch (error) {
    // What a run that is being ended trips over is no news.
    if (closing === undefined) {
      process.stderr.write(`the bench failed: ${(error as Error).message}\n`);
      process.exitCode = 1;
    }
  }
  await closeAll();
}

await main();
