import { LRUCache } from "lru-cache";
import { Counter, Gauge, type Registry } from "prom-client";
import type { Carrier } from "../core/carrier.ts";
import type { Unplaced } from "../core/create-verification.ts";
import type { InboundOutcome } from "../core/inbound-judgement.ts";
import { type Environment, environments } from "../core/project.ts";
import type { MessageOrigin } from "../core/take-inbound-messages.ts";
import { briefBuckets, HistogramFamily, type Observed } from "./histogram-family.ts";

export type Step = "created" | "verified" | "expired" | "cancelled";

/** How long a project counts as one without a number after a creation found none, unless another one then found one. */
const withoutNumberMs = 600_000;
/** Enough to tell one project from many. */
const rememberedProjects = 1_000;

const steps: readonly Step[] = ["created", "verified", "expired", "cancelled"];

/** Seconds: from what a person takes to send an SMS up to the longest validity. */
const timeToVerifyBuckets = [5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300, 600, 1_800, 3_600];

export interface CountedReceipt extends MessageOrigin {
  readonly outcome: InboundOutcome;
  readonly duplicate: boolean;
}

type ByCarrier = Record<Carrier | "none", [first: number, repeated: number]>;

/** All outcomes and carriers from the start: a counter that first appears as 1 has not increased. */
function noMessages(): Record<InboundOutcome, ByCarrier> {
  const none = (): ByCarrier => ({ SKT: [0, 0], KT: [0, 0], "LGU+": [0, 0], none: [0, 0] });
  return {
    verified: none(),
    no_match: none(),
    sender_mismatch: none(),
    late: none(),
    not_pending: none(),
    ambiguous: none(),
    web_sent: none(),
    muted: none(),
    invalid: none(),
  };
}

export function createVerificationMetrics(registry: Registry) {
  const made = new Map<string, number>();
  for (const step of steps) for (const environment of environments) made.set(`${step} ${environment}`, 0);
  new Counter({
    name: "phoneproof_verifications_total",
    help: "Transitions of verifications, each counted by the process that made it",
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

  const unplacedReasons: readonly Unplaced["reason"][] = ["no_number", "no_room"];
  const unplaced = new Counter({
    name: "phoneproof_creations_unplaced_total",
    help: "Creations refused for lack of a receiving number: no_number if the project has none, no_room if all its numbers are full",
    labelNames: ["environment", "reason"],
    registers: [registry],
  });
  for (const environment of environments) {
    for (const reason of unplacedReasons) unplaced.inc({ environment, reason }, 0);
  }
  /** No label for the project: the number of projects tells one merchant's trouble from everybody's. */
  const withoutNumber = (environment: Environment) =>
    [environment, new LRUCache<string, true>({ max: rememberedProjects, ttl: withoutNumberMs })] as const;
  const projectsWithoutNumber = new Map(environments.map(withoutNumber));
  new Gauge({
    name: "phoneproof_projects_without_number",
    help: "Projects whose latest creation in this process, of the last ten minutes, was refused because they have no receiving number, up to 1,000",
    labelNames: ["environment"],
    registers: [registry],
    collect() {
      for (const [environment, projects] of projectsWithoutNumber) {
        projects.purgeStale();
        this.set({ environment }, projects.size);
      }
    },
  });

  const timeToVerify = new HistogramFamily({
    name: "phoneproof_time_to_verify_seconds",
    help: "From creation to the message that verified, by environment",
    buckets: timeToVerifyBuckets,
    registry,
  });
  const timesToVerify = {
    live: timeToVerify.of({ environment: "live" }),
    test: timeToVerify.of({ environment: "test" }),
  } satisfies Record<Environment, Observed>;

  const messages = { live: noMessages(), test: noMessages(), none: noMessages() };
  new Counter({
    name: "phoneproof_inbound_messages_total",
    help: "Inbound messages that got a receipt, by outcome, carrier, environment of the number (none: unknown) and whether they were duplicates",
    labelNames: ["outcome", "carrier", "duplicate", "environment"],
    registers: [registry],
    collect() {
      this.reset();
      for (const [environment, ofEnvironment] of Object.entries(messages)) {
        for (const [outcome, ofOutcome] of Object.entries(ofEnvironment)) {
          for (const [carrier, [first, repeated]] of Object.entries(ofOutcome)) {
            this.inc({ outcome, carrier, duplicate: "false", environment }, first);
            this.inc({ outcome, carrier, duplicate: "true", environment }, repeated);
          }
        }
      }
    },
  });
  const faults = new Counter({
    name: "phoneproof_inbound_faults_total",
    help: "Inbound messages that hit an internal error",
    registers: [registry],
  });
  const receiptLatency = new HistogramFamily({
    name: "phoneproof_receipt_latency_seconds",
    help: "From an inbound message's arrival until its effect is durable and its receipt can be sent",
    buckets: briefBuckets,
    registry,
  }).of({});

  let windows = 0;
  new Gauge({
    name: "phoneproof_windows_open",
    help: "Verification windows that follow their verification over a stream of this process",
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

    created(environment: Environment, projectId: string): void {
      count("created", environment, 1);
      projectsWithoutNumber.get(environment)?.delete(projectId);
    },

    verified(environment: Environment, seconds: readonly number[]): void {
      count("verified", environment, seconds.length);
      // Below 0 if the database's clock was set back meanwhile: a sum that falls looks like a process that has restarted.
      for (const value of seconds) timesToVerify[environment].observe(Math.max(0, value));
    },

    receipt({ outcome, duplicate, carrier, environment }: CountedReceipt, seconds: number): void {
      messages[environment ?? "none"][outcome][carrier ?? "none"][duplicate ? 1 : 0]++;
      receiptLatency.observe(seconds);
    },

    inboundFault(): void {
      faults.inc();
    },

    unplaced({ projectId, environment, reason }: Unplaced): void {
      unplaced.inc({ environment, reason });
      if (reason === "no_number") projectsWithoutNumber.get(environment)?.set(projectId, true);
    },

    windowOpened(): void {
      windows++;
    },

    windowClosed(): void {
      windows--;
    },
  };
}
