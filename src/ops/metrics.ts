import { Counter, collectDefaultMetrics, Gauge, type Metric, Registry } from "prom-client";
import { version } from "../version.ts";
import { createCallMetrics } from "./call-metrics.ts";
import { createDeliveryMetrics } from "./delivery-metrics.ts";
import { createStorageMetrics } from "./storage-metrics.ts";
import { createVerificationMetrics } from "./verification-metrics.ts";

/** What the log's output says about its state. */
interface LogFigures {
  readonly waitingBytes: number;
  readonly droppedLines: number;
}

/**
 * Node's figures are the process's, of however many services in it: each collection would keep a timer of ten milliseconds, and an
 * observer of the garbage collector, until the process ends.
 */
let nodeFigures: Registry | undefined;

function registerNodeFigures(registry: Registry): void {
  if (nodeFigures === undefined) {
    nodeFigures = new Registry();
    collectDefaultMetrics({ register: nodeFigures });
  }
  for (const metric of nodeFigures.getMetricsAsArray()) registry.registerMetric(metric as unknown as Metric);
}

/** All that `/metrics` shows: Node's figures of the process and its event loop, and what the service's modules report. */
export function createMetrics() {
  const registry = new Registry();
  registerNodeFigures(registry);
  new Gauge({
    name: "phoneproof_build_info",
    help: "1, with this process's version",
    labelNames: ["version"],
    registers: [registry],
  }).set({ version }, 1);
  let last = performance.eventLoopUtilization();
  new Gauge({
    name: "phoneproof_event_loop_utilization_ratio",
    help: "Share of the time since the last scrape in which the event loop was busy",
    registers: [registry],
    collect() {
      const now = performance.eventLoopUtilization();
      this.set(performance.eventLoopUtilization(now, last).utilization);
      last = now;
    },
  });
  const lostRedis = new Gauge({
    name: "phoneproof_redis_lost",
    help: "1 while Redis is unavailable and this process enforces rate limits on its own",
    registers: [registry],
  });
  const certificateExpiry = new Gauge({
    name: "phoneproof_grpc_certificate_expiry_timestamp_seconds",
    help: "Unix time at which the certificate of the gRPC port expires",
    registers: [registry],
  });
  // Not shown until it is known: it would begin with 0.
  certificateExpiry.remove();
  return {
    registry,
    calls: createCallMetrics(registry),
    verifications: createVerificationMetrics(registry),
    storage: createStorageMetrics(registry),
    deliveries: createDeliveryMetrics(registry),

    redisLost(isLost: boolean): void {
      lostRedis.set(isLost ? 1 : 0);
    },

    certificateExpires(expiry: Date): void {
      certificateExpiry.set(expiry.getTime() / 1000);
    },

    watchLog(figures: LogFigures): void {
      new Gauge({
        name: "phoneproof_log_waiting_bytes",
        help: "Log bytes that the log's reader, or its file, has not accepted yet",
        registers: [registry],
        collect() {
          this.set(figures.waitingBytes);
        },
      });
      new Counter({
        name: "phoneproof_log_dropped_lines_total",
        help: "Log lines dropped because the log's reader, or its file, accepts nothing any more",
        registers: [registry],
        collect() {
          this.reset();
          this.inc(figures.droppedLines);
        },
      });
    },
  };
}
