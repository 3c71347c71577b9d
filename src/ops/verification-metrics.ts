import { Counter, Gauge, type Registry } from "prom-client";
import type { Carrier } from "../core/carrier.ts";
import type { InboundOutcome } from "../core/inbound-judgement.ts";
import type { Environment } from "../core/project.ts";
import { briefBuckets, HistogramFamily, type Observed } from "./histogram-family.ts";
import { kept } from "./kept.ts";

export type Step = "created" | "verified" | "expired" | "cancelled";

const environments: readonly Environment[] = ["live", "test"];
const steps: readonly Step[] = ["created", "verified", "expired", "cancelled"];

/** As long as a person takes to send an SMS, and as long as a verification can be valid. */
const patienceBuckets = [5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300, 600, 1_800, 3_600];

export function createVerificationMetrics(registry: Registry) {
  const made = new Map<string, number>();
  for (const step of steps) for (const environment of environments) made.set(`${step} ${environment}`, 0);
  new Counter({
    name: "phoneproof_verifications_total",
    help: "Verifications by what became of them, counted by the process that made it so",
    labelNames: ["transition", "environment"],
    registers: [registry],
    collect() {
      this.reset();
      for (const [key, count] of made) {
        const [transition = "", environment = ""] = key.split(" ");
        this.inc({ transition, environment }, count);
      }
    },
  });

  const timeToVerify = new HistogramFamily({
    name: "phoneproof_time_to_verify_seconds",
    help: "From creation to the message that verified, by environment",
    buckets: patienceBuckets,
    registry,
  });
  const timesToVerify = {
    live: timeToVerify.of({ environment: "live" }),
    test: timeToVerify.of({ environment: "test" }),
  } satisfies Record<Environment, Observed>;

  /** For each outcome: by carrier, the first ones and the repeated ones. */
  const messages = new Map<InboundOutcome, Map<Carrier | null, [first: number, repeated: number]>>();
  new Counter({
    name: "phoneproof_inbound_messages_total",
    help: "Inbound messages that got a receipt, by outcome, carrier (none: not known) and whether they were repeated",
    labelNames: ["outcome", "carrier", "duplicate"],
    registers: [registry],
    collect() {
      this.reset();
      for (const [outcome, ofOutcome] of messages) {
        for (const [known, [first, repeated]] of ofOutcome) {
          const carrier = known ?? "none";
          this.inc({ outcome, carrier, duplicate: "false" }, first);
          this.inc({ outcome, carrier, duplicate: "true" }, repeated);
        }
      }
    },
  });
  const receiptLatency = new HistogramFamily({
    name: "phoneproof_receipt_latency_seconds",
    help: "From an inbound message's arrival here to the moment its effect is durable and its receipt can leave",
    buckets: briefBuckets,
    registry,
  }).of({});

  let windows = 0;
  new Gauge({
    name: "phoneproof_windows_open",
    help: "Verification windows that follow their verification by a stream of this process",
    registers: [registry],
    collect() {
      this.set(windows);
    },
  });

  function count(step: Step, environment: Environment, times: number): void {
    const key = `${step} ${environment}`;
    made.set(key, (made.get(key) ?? 0) + times);
  }

  return {
    count,

    verified(environment: Environment, seconds: readonly number[]): void {
      count("verified", environment, seconds.length);
      for (const value of seconds) timesToVerify[environment].observe(value);
    },

    receipt(outcome: InboundOutcome, carrier: Carrier | null, duplicate: boolean, seconds: number): void {
      const ofOutcome = messages.get(outcome) ?? kept(messages, outcome, new Map());
      const counts = ofOutcome.get(carrier) ?? kept(ofOutcome, carrier, [0, 0]);
      counts[duplicate ? 1 : 0]++;
      receiptLatency.observe(seconds);
    },

    windowOpened(): void {
      windows++;
    },

    windowClosed(): void {
      windows--;
    },
  };
}
