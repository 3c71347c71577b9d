/** Decides whether a number or carrier has gone silent, by comparing it with its own past. */

export const hourMs = 3_600_000;
const dayMs = 24 * hourMs;

/** A week: the average covers every weekday once, and the first day is the same weekday as today. */
export const daysOfPast = 7;
/** How far back the counts are needed: a span of up to a day, a week ago. */
export const pastMs = (daysOfPast + 1) * dayMs;

/**
 * The probability below which a silence is not attributed to chance. It is low because every number and carrier is
 * judged again with each count, all year.
 */
const chance = 1e-6;
/** The share of the usual count that a poor day may bring without anything being wrong. */
const poorDay = 0.5;
/** If more than this many are expected, even a poor day brings none with at most that probability (Poisson). */
export const tellingCount = -Math.log(chance) / poorDay;

/** Counts by hour; the key is the start of the hour in milliseconds since the epoch. */
export type HourCounts = ReadonlyMap<number, number>;

/** The reception of one number or carrier. */
export interface Reception {
  /** Null if none was verified within `pastMs`. */
  readonly lastVerifiedAt: number | null;
  readonly verified: HourCounts;
  /** Verifications that could have been verified: those created on the number, or on all numbers in the case of a carrier. */
  readonly created: HourCounts;
}

export interface Silence {
  /** Time of the last verified one. */
  readonly since: number;
  /** The number expected since then, within the last day at most. */
  readonly expected: number;
}

/**
 * Nothing has been verified since the last verification; how many would the past have brought in the same hours? Two
 * estimates are made, the average of the last seven days and the same day a week ago, and the smaller one is used, so
 * that neither a single busy day nor a quiet weekday raises an alarm, and that a number or carrier younger than a week
 * is never judged silent. Both are scaled down by how many verifications are created now: without requests no SMS are
 * expected.
 */
export function silenceOf(reception: Reception, countedUntil: number): Silence | null {
  const { lastVerifiedAt, verified, created } = reception;
  if (lastVerifiedAt === null) return null;
  const from = Math.max(lastVerifiedAt, countedUntil - dayMs);
  const during = (counts: HourCounts, daysAgo: number) =>
    countIn(counts, from - daysAgo * dayMs, countedUntil - daysAgo * dayMs, countedUntil);
  // The hour of the last verification is left out: how many were created in it after that moment is not known.
  const hourAfter = Math.ceil(lastVerifiedAt / hourMs) * hourMs;
  const createdNow = countIn(created, Math.max(from, hourAfter), countedUntil, countedUntil);
  const expectedBy = (days: readonly number[]) => {
    const sumOf = (counts: HourCounts) => days.reduce((sum, daysAgo) => sum + during(counts, daysAgo), 0);
    const usual = sumOf(created) / days.length;
    return usual === 0 ? 0 : (sumOf(verified) / days.length) * Math.min(1, createdNow / usual);
  };
  const week = Array.from({ length: daysOfPast }, (_, index) => index + 1);
  const expected = Math.min(expectedBy(week), expectedBy([daysOfPast]));
  return expected > tellingCount ? { since: lastVerifiedAt, expected } : null;
}

/** The count within a span, with the first and last hour in proportion. An hour still in progress ends at `now`. */
function countIn(counts: HourCounts, from: number, to: number, now: number): number {
  let sum = 0;
  for (let hour = Math.floor(from / hourMs) * hourMs; hour < to; hour += hourMs) {
    const end = Math.min(hour + hourMs, now);
    const share = (Math.min(to, end) - Math.max(from, hour)) / (end - hour);
    sum += (counts.get(hour) ?? 0) * share;
  }
  return sum;
}

/** One hour's counts of a number or carrier. */
export interface ReceptionRow {
  readonly kind: "number" | "carrier";
  /** The destination number, or the carrier; empty for a carrier that was not reported. */
  readonly name: string;
  /** The start of the hour. */
  readonly hour: number;
  /** Zero for carriers, which are known only once a verification is verified. */
  readonly created: number;
  readonly verified: number;
  readonly lastVerifiedAt: number | null;
}

export interface SilentName {
  readonly kind: ReceptionRow["kind"];
  readonly name: string;
  readonly silence: Silence;
}

/** The silent numbers and carriers among the rows of one environment. */
export function silencesIn(
  rows: readonly ReceptionRow[],
  countedUntil: number,
  inUse: (number: string) => boolean,
): SilentName[] {
  const receptions = gatherReceptions(inUse);
  for (const row of rows) receptions.add(row);
  return receptions.silent(countedUntil);
}

/** The receptions of one environment, from its rows in any order. */
export interface Receptions {
  add(row: ReceptionRow): void;
  silent(countedUntil: number): SilentName[];
}

/** Numbers that take no new verifications are never silent, and neither is the unreported carrier. */
export function gatherReceptions(inUse: (number: string) => boolean): Receptions {
  const createdInAll = new Map<number, number>();
  const found = new Map<string, Gathered>();
  return {
    add({ kind, name, hour, created, verified, lastVerifiedAt }) {
      add(createdInAll, hour, created);
      if (kind === "number" ? !inUse(name) : name === "") return;
      const key = `${kind} ${name}`;
      let gathered = found.get(key);
      if (gathered === undefined) {
        const createdFor = kind === "carrier" ? createdInAll : new Map<number, number>();
        gathered = { kind, name, created: createdFor, verified: new Map(), lastVerifiedAt: null };
        found.set(key, gathered);
      }
      add(gathered.verified, hour, verified);
      if (kind === "number") add(gathered.created, hour, created);
      gathered.lastVerifiedAt = latestOf(gathered.lastVerifiedAt, lastVerifiedAt);
    },
    silent: (countedUntil) =>
      [...found.values()].flatMap(({ kind, name, ...reception }) => {
        const silence = silenceOf(reception, countedUntil);
        return silence === null ? [] : [{ kind, name, silence }];
      }),
  };
}

interface Gathered {
  readonly kind: ReceptionRow["kind"];
  readonly name: string;
  readonly created: Map<number, number>;
  readonly verified: Map<number, number>;
  lastVerifiedAt: number | null;
}

function add(counts: Map<number, number>, hour: number, count: number): void {
  counts.set(hour, (counts.get(hour) ?? 0) + count);
}

function latestOf(one: number | null, other: number | null): number | null {
  return one === null || other === null ? (one ?? other) : Math.max(one, other);
}
