/** Faults during the upgrade to a new version. */

import { closeSync, openSync } from "node:fs";
import { readdir, rm } from "node:fs/promises";
import path from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import pg from "pg";
import { type Daemon, startDaemon } from "../../bench/child.ts";
import { plainEnvironment } from "../harness/environment.ts";
import { signalIfThere } from "./database-server.ts";
import type { Fault } from "./faults.ts";
import type { Random } from "./random.ts";
import { program, readAddresses } from "./service-process.ts";
import type { World } from "./world.ts";

const migrations = path.join(import.meta.dirname, "../../prisma/migrations");
const starts = 3;

/** Starts three processes at once on an empty database and kills one of them at a random moment. */
async function startTogether({ database, directory, journal }: World, random: Random): Promise<void> {
  const name = `empty_${random.below(1_000_000)}`;
  await database.query(`CREATE DATABASE ${name} TEMPLATE template0`);
  const { host, port, user, password } = database.connection;
  const environment = plainEnvironment({
    PORT: "0",
    GRPC_PORT: "0",
    OPS_PORT: "0",
    DATABASE_URL: `postgres://${user}:${password}@${host}:${port}/${name}`,
    PUBLIC_BASE_URL: "http://localhost",
  });
  const daemons: Daemon[] = [];
  /** `running` resolves to whether the process reached its running state. */
  const start = (number: number) => {
    const outputFile = path.join(directory, `${name}-${number}.log`);
    closeSync(openSync(outputFile, "w"));
    const daemon = startDaemon({ program, execArgv: [], environment, outputFile });
    daemons.push(daemon);
    let ended = false;
    void daemon.exited.then(() => {
      ended = true;
    });
    const running = readAddresses(outputFile, 0, () => ended).then((addresses) => addresses !== undefined);
    return { daemon, running };
  };
  const endAtOnce = () => {
    for (const { pid } of daemons) signalIfThere(pid, "SIGKILL");
  };
  process.once("exit", endAtOnce);
  try {
    const started = Array.from({ length: starts }, (_, number) => start(number));
    const victim = random.pick(started);
    await delay(random.between(0, 2_000));
    signalIfThere(victim.daemon.pid, "SIGKILL");
    const again = start(starts);
    const others = started.filter((one) => one !== victim);
    const running = await Promise.all([...others, again].map((one) => one.running));
    if (running.includes(false))
      journal.append({ what: "violation", text: `concurrent starts: running ${running}` });
    const applied = await migrationsIn(database, name);
    const known = (await readdir(migrations, { withFileTypes: true })).filter((entry) => entry.isDirectory());
    if (JSON.stringify(applied) !== JSON.stringify(known.map((entry) => `${entry.name} 1`).sort())) {
      journal.append({ what: "violation", text: `concurrent starts applied ${applied}` });
    }
  } finally {
    endAtOnce();
    await Promise.all(daemons.map(({ exited }) => exited));
    process.off("exit", endAtOnce);
    await database.query(`DROP DATABASE ${name} WITH (FORCE)`);
    for (let number = 0; number <= starts; number++) await rm(path.join(directory, `${name}-${number}.log`));
  }
}

/** Each migration with the number of times that it was completed. */
async function migrationsIn({ connection }: World["database"], name: string): Promise<string[]> {
  const client = new pg.Client({ ...connection, database: name });
  await client.connect();
  const { rows } = await client.query<{ line: string }>(
    "SELECT migration_name || ' ' || count(finished_at) AS line FROM _prisma_migrations GROUP BY migration_name ORDER BY 1",
  );
  await client.end();
  return rows.map(({ line }) => line);
}

export const migrationFaults: readonly Fault[] = [
  { name: "migrations", processes: 1, recoversWithinMs: 2_000, apply: startTogether },
];
