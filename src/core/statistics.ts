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
import { hourMs, type ReceptionRow, type Silence, silencesIn } from "./silence.ts";
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

/** The stored counts of one hour, of a number or of a carrier. A carrier's row counts only verified ones. */
export interface HourRow extends ReceptionRow, Counts {
  readonly environment: Environment;
  /** The bucket of the first entry of `times`: empty buckets at both ends are left out. */
  readonly firstBucket: number;
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
  /** The hours asked for, and those of the past days by which silence is judged. */
  readonly rows: readonly HourRow[];
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

export interface Statistics extends Omit<CountedHours, "rows" | "now"> {
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

function statisticsOf(
  environment: Environment,
  counted: CountedHours,
  inUse: (number: string) => boolean,
): EnvironmentStatistics {
  const { since, until, now, countedUntil } = counted;
  const rows = counted.rows.filter((row) => row.environment === environment);
  const asked = rows.filter(({ hour }) => hour >= since && hour < until);
  const numbers = asked.filter(({ kind }) => kind === "number");
  const silences = until > now ? silencesIn(rows, countedUntil, inUse) : [];
  /** All numbers or carriers with counts in the period or silent now. */
  const named = (kind: ReceptionRow["kind"]) => {
    const met = groupedBy(
      asked.filter((row) => row.kind === kind),
      ({ name }) => name,
    );
    const silent = new Map(silences.filter((one) => one.kind === kind).map((one) => [one.name, one.silence]));
    return [...new Set([...met.keys(), ...silent.keys()])].sort().map((name) => ({
      name,
      counts: sumOf(met.get(name) ?? []),
      silence: silent.get(name) ?? null,
    }));
  };
  const byHour = groupedBy(numbers, ({ hour }) => hour);
  return {
    environment,
    total: sumOf(numbers),
    hours: Array.from({ length: (until - since) / hourMs }, (_, index) => {
      const hour = since + index * hourMs;
      return { hour, counts: sumOf(byHour.get(hour) ?? []) };
    }),
    numbers: named("number").map(({ name, ...rest }) => ({ destination: name, ...rest })),
    carriers: named("carrier").map(({ name, ...rest }) => ({ carrier: carrierNamed(name), ...rest })),
  };
}

const carrierNamed = (name: string) => (name === "" ? null : (name as Carrier));

function groupedBy<Key>(rows: readonly HourRow[], keyOf: (row: HourRow) => Key): Map<Key, HourRow[]> {
  const groups = new Map<Key, HourRow[]>();
  for (const row of rows) {
    const group = groups.get(keyOf(row));
    if (group) group.push(row);
    else groups.set(keyOf(row), [row]);
  }
  return groups;
}

function sumOf(rows: readonly HourRow[]): Counts {
  const sum = { created: 0, verified: 0, expired: 0, cancelled: 0, times: [...noTimes] };
  for (const { created, verified, expired, cancelled, firstBucket, times } of rows) {
    sum.created += created;
    sum.verified += verified;
    sum.expired += expired;
    sum.cancelled += cancelled;
    for (let index = 0; index < times.length; index++) {
      sum.times[firstBucket + index] = (sum.times[firstBucket + index] ?? 0) + (times[index] ?? 0);
    }
  }
  return sum;
}
