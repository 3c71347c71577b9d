/** Processes that are killed in the middle of their work. */

import { signalIfThere } from "./database-server.ts";
import type { Fault } from "./faults.ts";
import type { World } from "./world.ts";

const recoversWithinMs = 5_000;

async function killPostgres({ database }: World): Promise<void> {
  const [postmaster = 0] = await database.pids();
  signalIfThere(postmaster, "SIGKILL");
}

export const killFaults: readonly Fault[] = [
  {
    name: "kill-service",
    processes: 2,
    recoversWithinMs,
    async apply({ processes }, random) {
      random.pick(processes).kill();
    },
  },
  {
    name: "kill-postgres",
    processes: 2,
    recoversWithinMs,
    async apply(world) {
      await killPostgres(world);
      await world.database.ready();
    },
  },
  {
    name: "kill-both",
    processes: 2,
    recoversWithinMs,
    async apply(world, random) {
      const kills = [
        () => killPostgres(world),
        ...world.processes.map((service) => async () => service.kill()),
      ];
      if (random.chance(0.5)) kills.reverse();
      await Promise.all(kills.map((kill) => kill()));
      await world.database.ready();
    },
  },
  {
    // If one backend dies, Postgres restarts all of them, because shared memory may be corrupt.
    name: "kill-backend",
    processes: 2,
    recoversWithinMs,
    async apply({ database }, random) {
      const rows = await database.query<{ pid: number }>(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'phoneproof' ORDER BY state = 'active' DESC, pid",
      );
      if (rows.length > 0) signalIfThere(random.pick(rows.slice(0, 4)).pid, "SIGKILL");
      await database.ready();
    },
  },
];
