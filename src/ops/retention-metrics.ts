import { Gauge, type Registry } from "prom-client";

/**
 * When retention last caught up, on workers. Starts with the time of the process's start, before its first round: if no round
 * ever succeeds, the time stands still.
 */
export function createRetentionMetrics(registry: Registry) {
  const caughtUp = new Gauge({
    name: "phoneproof_retention_caught_up_timestamp_seconds",
    help: "Unix time at which retention last completed a round without a backlog or a failure; initially that of the start.",
    registers: [registry],
  });
  caughtUp.setToCurrentTime();
  return { caughtUp: () => caughtUp.setToCurrentTime() };
}
