/** Processes that are suspended and continue, as when a container is frozen or a machine sleeps. */

import { setTimeout as delay } from "node:timers/promises";
import { signalIfThere } from "./database-server.ts";
import type { Fault } from "./faults.ts";

export const pauseFaults: readonly Fault[] = [
  {
    name: "pause-service",
    processes: 2,
    recoversWithinMs: 2_000,
    async apply({ processes }, random) {
      for (let left = 3; left > 0; left--) {
        const { pid } = await random.pick(processes).running();
        signalIfThere(pid, "SIGSTOP");
        await delay(random.between(300, 10_000));
        signalIfThere(pid, "SIGCONT");
        await delay(random.between(200, 1_500));
      }
    },
  },
  {
    name: "pause-machine",
    processes: 2,
    recoversWithinMs: 2_000,
    async apply({ processes, database }, random) {
      const services = await Promise.all(processes.map((service) => service.running()));
      const pids = [...(await database.pids()), ...services.map(({ pid }) => pid)];
      for (const pid of pids) signalIfThere(pid, "SIGSTOP");
      await delay(random.between(300, 13_000));
      for (const pid of random.shuffle(pids)) signalIfThere(pid, "SIGCONT");
    },
  },
];
