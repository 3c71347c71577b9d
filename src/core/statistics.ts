import { Failure, type FieldViolation } from "../failures.ts";
import {
  boundsOf,
  chargedProject,
  missingProject,
  type NamedScope,
  noSuchProject,
  requireScope,
} from "./access.ts";
import type { Call } from "./call.ts";
import type { Carrier } from "./carrier.ts";
import type { Directory } from "./directory.ts";
import { type Environment, environments } from "./project.ts";
import { gatherReceptions, hourMs, pastMs, type ReceptionRow, type Silence } from "./silence.ts";
import { turnOfOthers } from "./time-slices.ts";
import { noTimes } from "./time-to-verify.ts";
import type { UsageCount } from "./usage.ts";

export interface StatisticsRequest extends NamedScope {
  /** Milliseconds since the epoch; null: `hours` hours ago. */
  readonly since: number | null;
  /** 1 to 744; 0: from `since` until now, or the last 24 if `since` is null too. */
  readonly hours: number;
}

/** How many verifications were created in a period, and how many ended in it as verified, expired or cancelled. */
export interface Counts {
  readonly created: number;
  readonly verified: number;
  readonly expired: number;
  readonly cancelled: number;
  /** Histogram of the time to verify: counts by bucket. */
  readonly times: readonly number[];
}

/** The stored counts of one hour. */
export interface CountedHour extends Counts {
  /** The start of the hour. */
  readonly hour: number;
  /** The bucket of the first entry of `times`: empty buckets at both ends are left out. */
  readonly firstBucket: number;
  readonly lastVerifiedAt: number | null;
}

/** The stored counts of a number or of a carrier. Those of a carrier have only verified ones. */
export interface CountedName extends Pick<ReceptionRow, "kind" | "name"> {
  readonly environment: Environment;
  /** To be read once: they are unpacked one by one. */
  hours(): Iterable<CountedHour>;
}

/** Times are milliseconds since the epoch by the database's clock. */
export interface CountedHours {
  readonly since: number;
  /** The end of the last hour. */
  readonly until: number;
  readonly now: number;
  readonly countedUntil: number;
  /** Whether part of the past has not been counted yet. */
  readonly incomplete: boolean;
  /** With the hours asked for, and those of the past days by which silence is judged. */
  readonly names: readonly CountedName[];
}

export interface StatisticsStore {
  /** Reads `maxHours + 1` hours at most, so that the caller notices a span that is too long. */
  read(filter: {
    readonly projectId: string;
    readonly environments: readonly Environment[];
    readonly since: number | null;
    readonly hours: number;
    readonly maxHours: number;
  }): Promise<CountedHours>;
}

export interface NumberStatistics {
  readonly destination: string;
  readonly counts: Counts;
  readonly silence: Silence | null;
}

export interface CarrierStatistics {
  readonly carrier: Carrier | null;
  readonly counts: Counts;
  readonly silence: Silence | null;
}

export interface EnvironmentStatistics {
  readonly environment: Environment;
  readonly total: Counts;
  readonly hours: readonly { readonly hour: number; readonly counts: Counts }[];
  readonly numbers: readonly NumberStatistics[];
  readonly carriers: readonly CarrierStatistics[];
}

export interface Statistics extends Omit<CountedHours, "names" | "now"> {
  readonly environments: readonly EnvironmentStatistics[];
}

export type GetStatistics = (request: StatisticsRequest, call: Call) => Promise<Statistics>;

const maxHours = 744;

/** Reads a project's counts over some hours, per environment, and finds the numbers and carriers that have gone silent. */
export function getStatistics(parts: {
  readonly statistics: StatisticsStore;
  readonly directory: Pick<Directory, "project" | "numbersFor">;
  readonly chargeUsage: (projectId: string) => Promise<UsageCount>;
}): GetStatistics {
  const { statistics, directory } = parts;
  return async (request, call) => {
    requireScope(call.caller, "read");
    const { projectId, environment } = boundsOf(call.caller, request);
    const violations = [...call.violations, ...violationsIn(request, projectId)];
    if (violations.length > 0 || projectId === null) {
      throw new Failure("validation_failed", { fields: violations });
    }
    if ((await directory.project(projectId)) === null) throw noSuchProject();
    const asked = environment === null ? environments : [environment];
    const { since, hours } = request;
    const counted = await statistics.read({ projectId, environments: asked, since, hours, maxHours });
    refuseUnlikely(counted);
    const found = await Promise.all(
      asked.map(async (name) => {
        const numbers = new Set((await directory.numbersFor(projectId, name)).map(({ number }) => number));
        return statisticsOf(name, counted, (named) => numbers.has(named));
      }),
    );
    // Charged last: a request that cannot be answered is not charged.
    const chargeTo = chargedProject(call.caller);
    if (chargeTo !== null) call.usage = await parts.chargeUsage(chargeTo);
    return { ...counted, environments: found };
  };
}

function violationsIn({ hours }: StatisticsRequest, projectId: string | null): FieldViolation[] {
  const violations: FieldViolation[] = [];
  if (projectId === null) violations.push(missingProject);
  if (hours < 0 || hours > maxHours) violations.push({ field: "hours", message: `must be 1 to ${maxHours}` });
  return violations;
}

/** Checks that need the database's clock. */
function refuseUnlikely({ since, until, now }: CountedHours): void {
  const message =
    since > now
      ? "must not be in the future"
      : until - since > maxHours * hourMs
        ? `must be at most ${maxHours} hours ago, unless hours is given`
        : undefined;
  if (message !== undefined) {
    throw new Failure("validation_failed", { fields: [{ field: "since", message }] });
  }
}

/** In time slices, of which one reads a few numbers at most. */
async function statisticsOf(
  environment: Environment,
  counted: CountedHours,
  inUse: (number: string) => boolean,
): Promise<EnvironmentStatistics> {
  const { since, until, now, countedUntil } = counted;
  const total = noCounts();
  const hours = Array.from({ length: (until - since) / hourMs }, () => noCounts());
  const ofNames = { number: new Map<string, Sum>(), carrier: new Map<string, Sum>() };
  const receptions = gatherReceptions(inUse);
  for (const { kind, name, hours: countedHours } of counted.names.filter(
    (named) => named.environment === environment,
  )) {
    await turnOfOthers();
    for (const counts of countedHours()) {
      const { hour, created, verified, lastVerifiedAt } = counts;
      if (hour > countedUntil - pastMs - hourMs) {
        receptions.add({ kind, name, hour, created, verified, lastVerifiedAt });
      }
      if (hour < since || hour >= until) continue;
      add(entryOf(ofNames[kind], name), counts);
      if (kind === "carrier") continue;
      add(total, counts);
      add(hours[(hour - since) / hourMs] ?? noCounts(), counts);
    }
  }
  const silences = until > now ? receptions.silent(countedUntil) : [];
  /** All numbers or carriers with counts in the period or silent now. */
  const named = (kind: ReceptionRow["kind"]) => {
    const silent = new Map(silences.filter((one) => one.kind === kind).map((one) => [one.name, one.silence]));
    return [...new Set([...ofNames[kind].keys(), ...silent.keys()])].sort().map((name) => ({
      name,
      counts: ofNames[kind].get(name) ?? noCounts(),
      silence: silent.get(name) ?? null,
    }));
  };
  return {
    environment,
    total,
    hours: hours.map((counts, index) => ({ hour: since + index * hourMs, counts })),
    numbers: named("number").map(({ name, ...rest }) => ({ destination: name, ...rest })),
    carriers: named("carrier").map(({ name, ...rest }) => ({ carrier: carrierNamed(name), ...rest })),
  };
}

const carrierNamed = (name: string) => (name === "" ? null : (name as Carrier));

interface Sum extends Counts {
  created: number;
  verified: number;
  expired: number;
  cancelled: number;
  readonly times: number[];
}

const noCounts = (): Sum => ({ created: 0, verified: 0, expired: 0, cancelled: 0, times: [...noTimes] });

function entryOf(sums: Map<string, Sum>, name: string): Sum {
  const known = sums.get(name);
  if (known !== undefined) return known;
  const sum = noCounts();
  sums.set(name, sum);
  return sum;
}

function add(sum: Sum, { created, verified, expired, cancelled, firstBucket, times }: CountedHour): void {
  sum.created += created;
  sum.verified += verified;
  sum.expired += expired;
  sum.cancelled += cancelled;
  for (let index = 0; index < times.length; index++) {
    sum.times[firstBucket + index] = (sum.times[firstBucket + index] ?? 0) + (times[index] ?? 0);
  }
}
