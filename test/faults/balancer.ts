/**
 * A load balancer in front of several processes: checks each one's readiness, and takes one that is stopping out of rotation.
 */

import { setTimeout as delay } from "node:timers/promises";
import type { Random } from "./random.ts";
import type { ServiceLife, ServiceProcess } from "./service-process.ts";

export interface Balancer {
  /** Waits while no process is available. */
  choose(random: Random): Promise<ServiceLife>;
  close(): void;
}

const askEveryMs = 200;
const checkTimeoutMs = 1_000;

export function startBalancer(processes: readonly ServiceProcess[]): Balancer {
  let closed = false;

  /**
   * A process without a database still answers, with 503, and stays in rotation: only one that reports that it is stopping is
   * taken out.
   */
  async function ask(): Promise<void> {
    while (!closed) {
      await Promise.all(processes.map(async ({ life }) => life && !life.out && look(life)));
      await delay(askEveryMs);
    }
  }

  async function look(life: ServiceLife): Promise<void> {
    try {
      const answer = await fetch(`${life.opsUrl}/readyz`, { signal: AbortSignal.timeout(checkTimeoutMs) });
      const text = await answer.text();
      if (text.includes("stopping")) life.out = true;
    } catch {
      // Dead or slow: the clients that are sent there will notice.
    }
  }

  void ask();
  return {
    async choose(random) {
      for (;;) {
        const there = processes.flatMap(({ life }) => (life && !life.out && !life.killed ? [life] : []));
        if (there.length > 0) return random.pick(there);
        await delay(5);
      }
    },
    close() {
      closed = true;
    },
  };
}
