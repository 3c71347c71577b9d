import { create } from "@bufbuild/protobuf";
import type { ConnectRouter } from "@connectrpc/connect";
import type { Silence as SilenceValue } from "../core/silence.ts";
import type {
  Counts,
  EnvironmentStatistics as EnvironmentStatisticsValue,
  GetStatistics,
} from "../core/statistics.ts";
import { timeToVerify } from "../core/time-to-verify.ts";
import {
  EnvironmentStatisticsSchema,
  SilenceSchema,
  StatisticsService,
  TimeToVerifySchema,
  VerificationCountsSchema,
} from "../gen/proto/phoneproof/v1/statistics_pb.ts";
import { callOf } from "./call-context.ts";
import { carrierMessage, environmentMessage, millisecondsOf, namedScopeOf, timestamp } from "./messages.ts";

export function statisticsRoutes(router: ConnectRouter, getStatistics: GetStatistics): void {
  router.service(StatisticsService, {
    async getStatistics(request, context) {
      const call = callOf(context);
      const since = millisecondsOf("since", request.since, call);
      const statistics = await getStatistics(
        { ...namedScopeOf(request, call), since, hours: request.hours },
        call,
      );
      return {
        since: timestamp(statistics.since),
        until: timestamp(statistics.until),
        countedUntil: timestamp(statistics.countedUntil),
        incomplete: statistics.incomplete,
        environments: statistics.environments.map(environmentStatisticsMessage),
      };
    },
  });
}

function environmentStatisticsMessage(value: EnvironmentStatisticsValue) {
  return create(EnvironmentStatisticsSchema, {
    environment: environmentMessage(value.environment),
    total: countsMessage(value.total),
    hours: value.hours.map(({ hour, counts }) => ({ hour: timestamp(hour), counts: countsMessage(counts) })),
    numbers: value.numbers.map(({ destination, counts, silence }) => ({
      destination,
      counts: countsMessage(counts),
      ...silenceMessage(silence),
    })),
    carriers: value.carriers.map(({ carrier, counts, silence }) => ({
      carrier: carrierMessage(carrier),
      verified: BigInt(counts.verified),
      ...timesMessage(counts.times),
      ...silenceMessage(silence),
    })),
  });
}

function countsMessage({ created, verified, expired, cancelled, times }: Counts) {
  const ended = verified + expired + cancelled;
  return create(VerificationCountsSchema, {
    created: BigInt(created),
    verified: BigInt(verified),
    expired: BigInt(expired),
    cancelled: BigInt(cancelled),
    ...(ended > 0 && { conversion: verified / ended }),
    ...timesMessage(times),
  });
}

function timesMessage(times: readonly number[]) {
  const [p50Seconds, p95Seconds] = [timeToVerify(times, 0.5), timeToVerify(times, 0.95)];
  if (p50Seconds === null || p95Seconds === null) return {};
  return { timeToVerify: create(TimeToVerifySchema, { p50Seconds, p95Seconds }) };
}

function silenceMessage(silence: SilenceValue | null) {
  if (silence === null) return {};
  return {
    silence: create(SilenceSchema, { since: timestamp(silence.since), expected: silence.expected }),
  };
}
