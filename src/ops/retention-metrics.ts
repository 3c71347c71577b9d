import { Gauge, type Registry } from "prom-client";

/**
 * How far retention has come, on workers. It begins with the process, whose first round is yet to come: one that never
 * ends well shows as a time that stands.
 */
export function createRetentionMetrics(registry: Registry) {
  const caughtUp = new Gauge({
    name: "phoneproof_retention_caught_up_timestamp_seconds",
    help: "Unix time at which retention last had nothing left that has had its time, without a failure; at first that of the start.",
    registers: [registry],
  });
  caughtUp.setToCurrentTime();
  return { caughtUp: () => caughtUp.setToCurrentTime() };
}
