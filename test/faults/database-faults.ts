/** Faults of a Postgres that is running but misbehaves. */

import { setTimeout as delay } from "node:timers/promises";
import pg from "pg";
import { signalIfThere } from "./database-server.ts";
import type { Fault } from "./faults.ts";
import { canMountSmallDisk, fillDisk } from "./small-disk.ts";
import type { World } from "./world.ts";

/** More than the `max_connections` of any world. */
const manyConnections = 100;

/** Takes every available connection, including the service's own; the service's attempts to reconnect are refused. */
async function takeAllConnections({ database }: World): Promise<pg.Client[]> {
  const taken: pg.Client[] = [];
  const take = async () => {
    while (taken.length < manyConnections) {
      const client = new pg.Client({ ...database.connection, application_name: "crowd" });
      client.on("error", () => {});
      try {
        await client.connect();
      } catch {
        return;
      }
      taken.push(client);
    }
  };
  await take();
  const [first] = taken;
  for (let left = 5; left > 0; left--) {
    await first?.query(
      "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'phoneproof%'",
    );
    await take();
  }
  return taken;
}

/** Changes a setting of the server for a while. */
async function setFor(
  database: World["database"],
  name: string,
  value: string,
  milliseconds: number,
): Promise<void> {
  await database.query(`ALTER SYSTEM SET ${name} = '${value}'`);
  await database.query("SELECT pg_reload_conf()");
  await delay(milliseconds);
  await database.query(`ALTER SYSTEM RESET ${name}`);
  await database.query("SELECT pg_reload_conf()");
}

const diskFull: Fault = {
  name: "disk-full",
  setting: "small disk",
  processes: 2,
  recoversWithinMs: 5_000,
  async apply({ directory, database }, random) {
    const giveBack = await fillDisk(directory);
    await delay(random.between(2_000, 5_000));
    await giveBack();
    await database.ready();
  },
};

export const databaseFaults: readonly Fault[] = [
  {
    name: "freeze",
    processes: 2,
    recoversWithinMs: 2_000,
    async apply({ database }, random) {
      await database.signal("SIGSTOP");
      try {
        await delay(random.between(500, 6_000));
      } finally {
        await database.signal("SIGCONT");
      }
    },
  },
  {
    name: "read-only",
    processes: 2,
    recoversWithinMs: 2_000,
    async apply({ database }, random) {
      await setFor(database, "default_transaction_read_only", "on", random.between(500, 2_500));
    },
  },
  {
    // Longer than the timeout for an answer: the first commits are given up, and what follows them is refused.
    name: "lost-standby",
    processes: 2,
    recoversWithinMs: 2_000,
    async apply({ database }, random) {
      await setFor(database, "synchronous_standby_names", "lost", random.between(12_000, 20_000));
    },
  },
  {
    name: "no-connections",
    processes: 2,
    recoversWithinMs: 2_000,
    async apply(world, random) {
      const taken = await takeAllConnections(world);
      world.journal.append({ what: "fault", name: "no-connections", note: `${taken.length} are taken` });
      await delay(random.between(500, 2_500));
      await Promise.all(taken.map((client) => client.end()));
    },
  },
  {
    // A clean restart, as for an upgrade: open connections are closed.
    name: "restart-postgres",
    processes: 2,
    recoversWithinMs: 5_000,
    async apply({ database }) {
      const [postmaster = 0] = await database.pids();
      signalIfThere(postmaster, "SIGINT");
      while ((await database.pids()).includes(postmaster)) await delay(20);
      await database.ready();
    },
  },
  {
    // The standby has every acknowledged commit. State that the service derived from unacknowledged ones is no longer true.
    name: "failover",
    setting: "standby",
    processes: 2,
    recoversWithinMs: 5_000,
    apply: (world) => world.failOver(),
  },
  ...(canMountSmallDisk() ? [diskFull] : []),
];
