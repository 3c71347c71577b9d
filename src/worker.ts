/** What a process with the role worker runs: jobs on a timer, which may run in any number of processes at once. */

import type { Logger } from "pino";
import type { Closers } from "./closers.ts";
import { findSilences } from "./core/find-silences.ts";
import { encodeId } from "./core/ids.ts";
import { deliverInTime } from "./jobs/deliveries.ts";
import { expireInTime } from "./jobs/expiry.ts";
import { keepRetention } from "./jobs/retention.ts";
import { countStatistics, watchSilence } from "./jobs/statistics.ts";
import type { createMetrics } from "./ops/metrics.ts";
import { createRetentionMetrics } from "./ops/retention-metrics.ts";
import { createSilenceMetrics } from "./ops/silence-metrics.ts";
import { commitHorizon } from "./storage/commit-horizon.ts";
import type { Database } from "./storage/database.ts";
import { createExpireDue } from "./storage/expiry.ts";
import { createRetentionTasks, type RetentionSettings } from "./storage/retention.ts";
import { createRetentionClock } from "./storage/retention-clock.ts";
import { createReceptionStore } from "./storage/statistics.ts";
import { createStatisticsCounting } from "./storage/statistics-counting.ts";
import { createWebhookDeliveries } from "./storage/webhook-deliveries.ts";
import type { tracedParts } from "./tracing/traced.ts";
import { createMakeAttempt } from "./webhooks/attempt.ts";
import type { Endpoints } from "./webhooks/endpoints.ts";

export interface Worker {
  /** To be called when a delivery may have become due. */
  wakeDeliveries(): void;
}

/** Starts its jobs; `closers` stops them. */
export function startWorker(parts: {
  readonly database: Database;
  readonly endpoints: Endpoints;
  readonly metrics: ReturnType<typeof createMetrics>;
  /** Null: nothing is traced. */
  readonly traced: ReturnType<typeof tracedParts> | null;
  readonly retention: RetentionSettings;
  readonly log: Logger;
  readonly closers: Closers;
}): Worker {
  const { database, endpoints, metrics, traced, retention: retentionSettings, log, closers } = parts;

  const expiry = expireInTime({
    expireDue: createExpireDue(database, { commitHorizon: () => commitHorizon(database) }),
    onError: (error) => log.warn({ err: error }, "overdue verifications could not be expired"),
  });
  closers.startJob(expiry);
  const retentionMetrics = createRetentionMetrics(metrics.registry);
  const retentionTasks = createRetentionTasks(database, retentionSettings);
  const retention = keepRetention({
    tasks: retentionTasks,
    isClockSteady: createRetentionClock(database, {
      onJump: (jump) =>
        log.warn(
          jump,
          "the database's clock has jumped, or no worker ran for long: retention waits for an hour",
        ),
      onFirstReading: () =>
        log.info("no worker has looked at this database's clock before: retention waits for an hour"),
      onWait: retentionMetrics.waits,
    }).isSteady,
    onError: (error, task) =>
      log.warn({ err: error, task }, "data past its retention period could not be deleted"),
    onCaughtUp: retentionMetrics.caughtUp,
  });
  closers.startJob(retention);
  const { claim, record, bringForward } = createWebhookDeliveries(database, {
    onDisabled(webhookId, reason) {
      metrics.deliveries.webhookDisabled();
      log.warn({ webhookId: encodeId("whk_", webhookId), reason }, "a webhook was disabled");
    },
  });
  const counting = countStatistics({
    count: createStatisticsCounting(database, {
      async onClockSetBack() {
        await bringForward();
        // The clock may be right again before retention reads it, which it does once a minute.
        for (const task of retentionTasks) await task.goBack?.();
      },
    }).count,
    onError: (error) => log.warn({ err: error }, "the statistics could not be updated"),
  });
  closers.startJob(counting);
  const watching = watchSilence({
    find: findSilences({ receptions: createReceptionStore(database) }),
    show: createSilenceMetrics(metrics.registry).show,
    onError: (error) => log.warn({ err: error }, "the check for silent numbers and carriers failed"),
  });
  closers.startJob(watching);
  const makeAttempt = createMakeAttempt(endpoints);
  const delivering = deliverInTime({
    claim,
    attempt: metrics.deliveries.counted(traced ? traced.attempts(makeAttempt) : makeAttempt),
    async record(result) {
      await record(result);
      const { verificationId, number, status, error, durationMs, retryInSeconds } = result;
      const attempt = { eventId: encodeId("evt_", verificationId), number, status, error, durationMs };
      log.debug(attempt, "webhook attempt");
      if (error !== null && retryInSeconds === null) log.warn(attempt, "a webhook delivery was given up");
    },
    onError: (error) =>
      log.warn({ err: error }, "webhook deliveries could not be claimed, or their results recorded"),
  });
  closers.startJob(delivering);
  return { wakeDeliveries: () => delivering.wake() };
}
