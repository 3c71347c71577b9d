import { Gauge, type Registry } from "prom-client";

/**
 * When retention last caught up, on workers, and whether it waits. The time starts with that of the process's start, before its
 * first round: if no round ever succeeds, it stands still.
 */
export function createRetentionMetrics(registry: Registry) {
  const caughtUp = new Gauge({
    name: "phoneproof_retention_caught_up_timestamp_seconds",
    help: "Unix time at which retention last completed a round without a backlog or a failure; initially that of the start.",
    registers: [registry],
  });
  caughtUp.setToCurrentTime();
  const waits = new Gauge({
    name: "phoneproof_retention_waits",
    help: "1 while retention waits because the database's clock has jumped, 0 otherwise.",
    registers: [registry],
  });
  return {
    caughtUp: () => caughtUp.setToCurrentTime(),
    waits: (whether: boolean) => waits.set(whether ? 1 : 0),
  };
}
