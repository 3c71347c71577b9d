/** Faults of several processes on one Postgres, some of which end. */

import { setTimeout as delay } from "node:timers/promises";
import type { Fault } from "./faults.ts";
import { newKey } from "./load.ts";
import type { Random } from "./random.ts";
import { watchWindow } from "./window-visitor.ts";
import type { World } from "./world.ts";

const watchedWindows = 10;
const windowTimeoutMs = 60_000;

/**
 * Opens windows, and returns a function that cancels their verifications and returns the final status that each window
 * received.
 */
async function openWindows({ calls, balancer }: World, random: Random) {
  const opened = Array.from({ length: watchedWindows }, async () => {
    const key = newKey();
    const { body } = await calls.create(random, key, { client_reference: key });
    const { id, verification_url: verificationUrl } = JSON.parse(body);
    return { id, ending: watchWindow({ balancer, random, verificationUrl, timeoutMs: windowTimeoutMs }) };
  });
  const windows = await Promise.all(opened);
  return async () => {
    for (const { id } of windows) await calls.cancel(random, id);
    return Promise.all(windows.map(({ ending }) => ending));
  };
}

export const fleetFaults: readonly Fault[] = [
  {
    name: "kill-one-of-three",
    processes: 3,
    recoversWithinMs: 5_000,
    async apply({ processes }, random) {
      for (let left = 3; left > 0; left--) {
        random.pick(processes).kill();
        await delay(random.between(500, 3_000));
      }
    },
  },
  {
    // As in an upgrade. No client must notice.
    name: "rolling-restart",
    processes: 3,
    recoversWithinMs: 2_000,
    async apply(world, random) {
      const { processes, journal } = world;
      const before = journal.read().length;
      const endings = await openWindows(world, random);
      for (const service of processes) {
        await service.running();
        await service.restart();
      }
      const finals = await endings();
      for (const ending of finals) {
        if (ending !== "cancelled") journal.append({ what: "violation", text: `a window got ${ending}` });
      }
      for (const entry of journal.read().slice(before)) {
        const failed = entry.what === "unanswered" || (entry.what === "answered" && entry.status === 503);
        if (failed)
          journal.append({ what: "violation", text: `during a rolling restart: ${JSON.stringify(entry)}` });
      }
    },
  },
];
