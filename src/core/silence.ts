/** Whether a number or carrier has gone silent, judged by its own past. */

export const hourMs = 3_600_000;
const dayMs = 24 * hourMs;

/** A week: every day of it takes part in the average, and the first of it was the same day of the week. */
const daysOfPast = 7;
/** How much of the past a judgement looks at: a span of a day, a week ago. */
export const pastMs = (daysOfPast + 1) * dayMs;

/** Below this chance it is no chance. Every number and carrier is judged anew with each count, all year. */
const chance = 1e-6;
/** What a day may bring of what is usual, without anything being wrong. */
const poorDay = 0.5;
/** Where so many are expected, even a poor day brings none with no more than that chance (Poisson). */
const tellingCount = -Math.log(chance) / poorDay;

/** Counts by the hours' first instants, in milliseconds since the epoch. */
export type HourCounts = ReadonlyMap<number, number>;

/** What is known of a number or carrier. */
export interface Reception {
  /** Null: none within the past that is looked at. */
  readonly lastVerifiedAt: number | null;
  readonly verified: HourCounts;
  /** What could have been verified: on the number, or in all where carriers are concerned. */
  readonly created: HourCounts;
}

export interface Silence {
  /** When the last one was verified. */
  readonly since: number;
  /** How many were to be expected since then, of at most the last day. */
  readonly expected: number;
}

/**
 * Since the last one was verified nothing has been; what would its past have brought in the same hours? The smaller of
 * two answers counts, so that neither a single busy day nor a quiet day of the week alarms: the average of the last
 * seven days, and the same day a week ago. Each only for as many as are created now: where nobody asks, nobody answers.
 * So there is no judgement of what is younger than a week.
 */
export function silenceOf(reception: Reception, countedUntil: number): Silence | null {
  const { lastVerifiedAt, verified, created } = reception;
  if (lastVerifiedAt === null) return null;
  const from = Math.max(lastVerifiedAt, countedUntil - dayMs);
  const during = (counts: HourCounts, daysAgo: number) =>
    countIn(counts, from - daysAgo * dayMs, countedUntil - daysAgo * dayMs, countedUntil);
  // Of the hour in which the last one was verified, nobody knows how many were created after it.
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

/** What fell into a span, of its first and last hour in proportion. An hour that is not over ends at `now`. */
function countIn(counts: HourCounts, from: number, to: number, now: number): number {
  let sum = 0;
  for (let hour = Math.floor(from / hourMs) * hourMs; hour < to; hour += hourMs) {
    const end = Math.min(hour + hourMs, now);
    const share = (Math.min(to, end) - Math.max(from, hour)) / (end - hour);
    sum += (counts.get(hour) ?? 0) * share;
  }
  return sum;
}

/** What an hour has brought of a number or carrier. */
export interface ReceptionRow {
  readonly kind: "number" | "carrier";
  /** The destination number, or the carrier, empty where none was reported. */
  readonly name: string;
  /** The hour's first instant. */
  readonly hour: number;
  /** Zero for carriers: they are known of the verified ones only. */
  readonly created: number;
  readonly verified: number;
  readonly lastVerifiedAt: number | null;
}

export interface SilentName {
  readonly kind: ReceptionRow["kind"];
  readonly name: string;
  readonly silence: Silence;
}

/**
 * Those that are silent, of one environment's rows. A number that takes no new verifications is none of them, nor is the
 * carrier that nobody reported.
 */
export function silencesIn(
  rows: readonly ReceptionRow[],
  countedUntil: number,
  inUse: (number: string) => boolean,
): SilentName[] {
  const createdInAll = new Map<number, number>();
  const found = new Map<string, Gathered>();
  for (const row of rows) {
    const { kind, name, hour } = row;
    add(createdInAll, hour, row.created);
    if (kind === "number" ? !inUse(name) : name === "") continue;
    const created = kind === "carrier" ? createdInAll : new Map();
    const gathered = found.get(`${kind} ${name}`) ?? {
      kind,
      name,
      created,
      verified: new Map(),
      lastVerifiedAt: null,
    };
    found.set(`${kind} ${name}`, gathered);
    add(gathered.verified, hour, row.verified);
    if (kind === "number") add(gathered.created, hour, row.created);
    gathered.lastVerifiedAt = latestOf(gathered.lastVerifiedAt, row.lastVerifiedAt);
  }
  return [...found.values()].flatMap(({ kind, name, ...reception }) => {
    const silence = silenceOf(reception, countedUntil);
    return silence === null ? [] : [{ kind, name, silence }];
  });
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
