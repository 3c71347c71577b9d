import { Counter, Gauge, type Registry } from "prom-client";
import type { AttemptResult, MakeAttempt } from "../core/webhook.ts";
import { HistogramFamily, type Observed } from "./histogram-family.ts";

const results = ["delivered", "refused", "unanswered", "gone"] as const;

type Result = (typeof results)[number];

/** An exchange is cut after 15 s. */
const exchangeBuckets = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15];
/** The first attempt is promised within a second. */
const firstBuckets = [0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300];

export function createDeliveryMetrics(registry: Registry) {
  const exchanges = new HistogramFamily({
    name: "phoneproof_delivery_attempt_duration_seconds",
    help: "Webhook delivery attempts by result: delivered, refused (a status other than 2xx), unanswered, gone (410)",
    buckets: exchangeBuckets,
    registry,
  });
  const byResult = Object.fromEntries(results.map((result) => [result, exchanges.of({ result })])) as Record<
    Result,
    Observed
  >;
  const firstDelays = new HistogramFamily({
    name: "phoneproof_delivery_first_attempt_delay_seconds",
    help: "From a transition to the first attempt to deliver its webhook",
    buckets: firstBuckets,
    registry,
  }).of({});
  const givenUp = new Counter({
    name: "phoneproof_deliveries_given_up_total",
    help: "Webhook deliveries whose last attempt failed",
    registers: [registry],
  });
  const disabled = new Counter({
    name: "phoneproof_webhooks_disabled_total",
    help: "Webhooks disabled because their endpoint answered 410 or failed for five days",
    registers: [registry],
  });
  let underWay = 0;
  new Gauge({
    name: "phoneproof_deliveries_under_way",
    help: "Webhook delivery attempts in progress in this process",
    registers: [registry],
    collect() {
      this.set(underWay);
    },
  });

  return {
    /** Wraps `attempt` to count and time the attempts. */
    counted(attempt: MakeAttempt): MakeAttempt {
      return async (due, signal) => {
        underWay++;
        if (due.number === 1) {
          firstDelays.observe(Math.max(0, due.startedAt - due.event.occurredAt) / 1_000);
        }
        try {
          const result = await attempt(due, signal);
          byResult[resultOf(result)].observe(result.durationMs / 1_000);
          if (result.error !== null && result.retryInSeconds === null) givenUp.inc();
          return result;
        } finally {
          underWay--;
        }
      };
    },

    webhookDisabled(): void {
      disabled.inc();
    },
  };
}

function resultOf({ error, status, gone }: AttemptResult): Result {
  if (error === null) return "delivered";
  if (gone) return "gone";
  return status === null ? "unanswered" : "refused";
}
