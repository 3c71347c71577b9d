/** phoneproof stats: how a project's verifications ended. */

import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import {
  type CarrierStatistics,
  type EnvironmentStatistics,
  type GetStatisticsResponse,
  type HourStatistics,
  type NumberStatistics,
  type Silence,
  StatisticsService,
  type TimeToVerify,
  type VerificationCounts,
} from "../gen/proto/phoneproof/v1/statistics_pb.ts";
import { bar, sparkline } from "./chart.ts";
import type { CliCommand } from "./command.ts";
import {
  type Column,
  fields,
  grouped,
  layOut,
  leftOutNote,
  localTime,
  localTimeWithZone,
  type Table,
} from "./layout.ts";
import { atLeastOne, environmentOption, instant, nonEmpty } from "./option-values.ts";
import type { Session } from "./session.ts";
import { displayWidth, escapeControls, outputColumns, styled } from "./terminal.ts";
import {
  carrierWord,
  dateOf,
  type EnvironmentWord,
  environmentField,
  environmentWord,
  isoTime,
} from "./words.ts";

interface StatsOptions {
  readonly project: string;
  readonly environment?: EnvironmentWord;
  readonly since?: Date;
  readonly hours?: number;
}

export function addStatsCommand(program: CliCommand): void {
  program
    .command("stats")
    .description(
      "Show how many verifications were created, how they ended and how long verifying took, by hour, number and carrier, and which numbers and carriers are silent.",
    )
    .usage("--project ID [options]")
    .requiredOption("--project <id>", "the project, prj_…", nonEmpty)
    .addOption(environmentOption("only this environment's (default: both, separately)"))
    .option(
      "--since <instant>",
      "from the hour of this time: 2026-11-21T06:41:00Z, or 72h for 72 hours ago",
      instant,
    )
    .option("--hours <n>", "number of hours, at most 744 (default: 24, or from --since to now)", atLeastOne)
    .examples(
      ["the last day", "stats --project prj_01kaex4mpyf2xbtyt1s6vdr4e9"],
      [
        "the last week in production, for a script",
        "stats --project prj_01kaex4mpyf2xbtyt1s6vdr4e9 --environment live --hours 168 --json",
      ],
    )
    .does<StatsOptions>(showStatistics);
}

async function showStatistics(session: Session, options: StatsOptions): Promise<void> {
  const { project, environment, since, hours } = options;
  const statistics = await session.client.call(StatisticsService.method.getStatistics, {
    projectId: project,
    hours: hours ?? 0,
    ...environmentField(environment),
    since: since && timestampFromDate(since),
  });
  session.answer(statisticsJson(statistics), () => statisticsText(statistics));
}

function statisticsJson({ since, until, countedUntil, incomplete, environments }: GetStatisticsResponse) {
  return {
    since: isoTime(since),
    until: isoTime(until),
    counted_until: isoTime(countedUntil),
    incomplete,
    environments: environments.map(({ environment, total, hours, numbers, carriers }) => ({
      environment: environmentWord(environment),
      total: countsJson(total),
      hours: hours.map(({ hour, counts }) => ({ hour: isoTime(hour), ...countsJson(counts) })),
      numbers: numbers.map(({ destination, counts, silence }) => ({
        destination,
        ...countsJson(counts),
        silence: silenceJson(silence),
      })),
      carriers: carriers.map(({ carrier, verified, timeToVerify, silence }) => ({
        carrier: carrierWord(carrier),
        verified: Number(verified),
        time_to_verify: timeJson(timeToVerify),
        silence: silenceJson(silence),
      })),
    })),
  };
}

function countsJson(counts: VerificationCounts | undefined) {
  return {
    ...numbersOf(counts),
    conversion: counts?.conversion ?? null,
    time_to_verify: timeJson(counts?.timeToVerify),
  };
}

function timeJson(time: TimeToVerify | undefined) {
  return time === undefined ? null : { p50_seconds: time.p50Seconds, p95_seconds: time.p95Seconds };
}

function silenceJson(silence: Silence | undefined) {
  return silence === undefined ? null : { since: isoTime(silence.since), expected: silence.expected };
}

function numbersOf(counts: VerificationCounts | undefined) {
  return {
    created: Number(counts?.created ?? 0),
    verified: Number(counts?.verified ?? 0),
    expired: Number(counts?.expired ?? 0),
    cancelled: Number(counts?.cancelled ?? 0),
  };
}

function statisticsText({
  since,
  until,
  countedUntil,
  incomplete,
  environments,
}: GetStatisticsResponse): string {
  const counted = dateOf(countedUntil);
  const end = [dateOf(until), counted].filter((date) => date !== null).sort((one, other) => +one - +other)[0];
  const span = `${localTime(dateOf(since))} to ${localTimeWithZone(end ?? null)}`;
  const notes = incomplete ? ["Earlier verifications are still being counted: these counts may grow."] : [];
  const leftOut = new Set<string>();
  // Hours after `end` are not counted yet and would look like hours in which nothing happened.
  const texts = environments.map(({ hours, ...environment }) => {
    const begun = hours.filter(({ hour }) => end === undefined || +(dateOf(hour) ?? 0) < +end);
    return environmentText({ ...environment, hours: begun }, leftOut);
  });
  return [span, ...notes, ...texts, ...leftOutNote(leftOut)].join("\n\n");
}

/** Adds to `leftOut` the table columns that had no room. They are reported once for all environments. */
function environmentText(statistics: EnvironmentStatistics, leftOut: Set<string>): string {
  const { environment, total, hours, numbers, carriers } = statistics;
  const word = styled("bold", environmentWord(environment) ?? "-");
  const silences = [
    ...numbers.map(({ destination, silence }) => silenceLine(destination, silence)),
    ...carriers.map(({ carrier, silence }) => silenceLine(carrierWord(carrier) ?? "-", silence)),
  ].filter((line) => line !== undefined);
  if (numbers.length + carriers.length === 0) return `${word}\nNo verifications in this period.`;
  const tables = [
    periodTable(hours),
    numberTable(numbers),
    ...(carriers.length === 0 ? [] : [carrierTable(carriers)]),
  ];
  for (const heading of tables.flatMap((table) => table.leftOut)) leftOut.add(heading);
  return [[word, ...silences].join("\n"), totalText(total, hours), ...tables.map(({ text }) => text)].join(
    "\n\n",
  );
}

function silenceLine(name: string, silence: Silence | undefined): string | undefined {
  if (silence === undefined) return undefined;
  const since = localTime(dateOf(silence.since));
  const expected = grouped(Math.round(silence.expected));
  return styled(
    "red",
    `! ${escapeControls(name)} is silent: none verified since ${since}, ${expected} expected.`,
  );
}

const kinds = ["created", "verified", "expired", "cancelled"] as const;

/** Wide enough to read at a glance; more columns would add no information. */
const widestSparkline = 72;

function totalText(total: VerificationCounts | undefined, hours: readonly HourStatistics[]): string {
  const sums = numbersOf(total);
  const width = Math.max(...kinds.map((kind) => grouped(sums[kind]).length));
  const room = Math.max(8, Math.min(widestSparkline, outputColumns() - "conversion".length - width - 4));
  const lines = kinds.map((kind) => {
    const drawn = sparkline(
      hours.map(({ counts }) => numbersOf(counts)[kind]),
      room,
    );
    return [kind, `${grouped(sums[kind]).padStart(width)}  ${drawn}`] as const;
  });
  const { p50Seconds, p95Seconds } = total?.timeToVerify ?? {};
  return fields([
    ...lines,
    [
      "conversion",
      total?.conversion === undefined ? null : `${percent(total.conversion)} of those that ended`,
    ],
    [
      "took",
      p50Seconds === undefined || p95Seconds === undefined
        ? null
        : `half of them ${duration(p50Seconds)} or less, 95 % of them ${duration(p95Seconds)} or less`,
    ],
  ]);
}

type Numbers = ReturnType<typeof numbersOf>;

interface Period {
  readonly label: string;
  readonly counts: Numbers;
  readonly time: TimeToVerify | undefined;
}

/** Longer periods are shown by day. */
const mostHours = 48;

function periodTable(hours: readonly HourStatistics[]): Table {
  const byHour = hours.length <= mostHours;
  const periods = byHour ? hours.map(hourPeriod) : daysOf(hours);
  return layOut(
    [
      { heading: byHour ? "HOUR" : "DAY", value: ({ label }) => label, rank: 1 },
      ...countColumns(periods, ({ counts }) => counts),
      ...(byHour ? timeColumns(periods, ({ time }) => time) : []),
    ],
    periods,
  );
}

function hourPeriod({ hour, counts }: HourStatistics): Period {
  const label = localTime(dateOf(hour)).slice(0, -":00".length);
  return { label, counts: numbersOf(counts), time: counts?.timeToVerify };
}

/** Days of this machine's time zone. Percentiles cannot be added up and are left out. */
function daysOf(hours: readonly HourStatistics[]): Period[] {
  const days = new Map<string, Period>();
  for (const { hour, counts } of hours) {
    const label = localTime(dateOf(hour)).slice(0, "2026-11-21".length);
    const sum = numbersOf(counts);
    const before = days.get(label)?.counts;
    for (const kind of kinds) sum[kind] += before?.[kind] ?? 0;
    days.set(label, { label, counts: sum, time: undefined });
  }
  return [...days.values()];
}

function numberTable(numbers: readonly NumberStatistics[]): Table {
  return layOut(
    [
      { heading: "NUMBER", value: ({ destination }) => destination, rank: 1 },
      ...countColumns(numbers, ({ counts }) => numbersOf(counts)),
      ...timeColumns(numbers, ({ counts }) => counts?.timeToVerify),
    ],
    numbers,
  );
}

function carrierTable(carriers: readonly CarrierStatistics[]): Table {
  const all = carriers.reduce((sum, { verified }) => sum + Number(verified), 0);
  const share = ({ verified }: CarrierStatistics) => (all === 0 ? "-" : percent(Number(verified) / all));
  return layOut(
    [
      { heading: "CARRIER", value: ({ carrier }) => carrierWord(carrier) ?? "(none)", rank: 1 },
      { ...rightAligned("VERIFIED", carriers, ({ verified }) => grouped(Number(verified))), rank: 1 },
      barColumn(carriers, ({ verified }) => Number(verified)),
      { ...rightAligned("SHARE", carriers, share), rank: 2 },
      ...timeColumns(carriers, ({ timeToVerify }) => timeToVerify),
    ],
    carriers,
  );
}

function countColumns<Row>(rows: readonly Row[], countsOf: (row: Row) => Numbers): Column<Row>[] {
  const count = (kind: (typeof kinds)[number]) => (row: Row) => grouped(countsOf(row)[kind]);
  return [
    { ...rightAligned("CREATED", rows, count("created")), rank: 1 },
    barColumn(rows, (row) => countsOf(row).created),
    { ...rightAligned("VERIFIED", rows, count("verified")), rank: 1 },
    { ...rightAligned("EXPIRED", rows, count("expired")), rank: 3 },
    { ...rightAligned("CANCELLED", rows, count("cancelled")), rank: 4 },
    { ...rightAligned("CONVERSION", rows, (row) => conversionOf(countsOf(row))), rank: 2 },
  ];
}

function conversionOf({ verified, expired, cancelled }: Numbers): string {
  const ended = verified + expired + cancelled;
  return ended === 0 ? "-" : percent(verified / ended);
}

const barWidth = 16;

function barColumn<Row>(rows: readonly Row[], countOf: (row: Row) => number): Column<Row> {
  const highest = Math.max(...rows.map(countOf));
  return {
    heading: "",
    value: (row) => bar(countOf(row), highest, barWidth),
    rank: 7,
    colour: () => "cyan",
  };
}

function timeColumns<Row>(
  rows: readonly Row[],
  timeOf: (row: Row) => TimeToVerify | undefined,
): Column<Row>[] {
  const shown = (pick: (time: TimeToVerify) => number) => (row: Row) => {
    const time = timeOf(row);
    return time === undefined ? "-" : duration(pick(time));
  };
  return [
    {
      ...rightAligned(
        "P50",
        rows,
        shown(({ p50Seconds }) => p50Seconds),
      ),
      rank: 5,
    },
    {
      ...rightAligned(
        "P95",
        rows,
        shown(({ p95Seconds }) => p95Seconds),
      ),
      rank: 6,
    },
  ];
}

/** A right-aligned column of numbers. */
function rightAligned<Row>(heading: string, rows: readonly Row[], value: (row: Row) => string) {
  const width = Math.max(heading.length, ...rows.map((row) => displayWidth(value(row))));
  return { heading: heading.padStart(width), value: (row: Row) => value(row).padStart(width) };
}

const percent = (share: number) => `${(share * 100).toFixed(share < 0.9995 ? 1 : 0)} %`;

/** `24 s`, `1 min 31 s` */
function duration(seconds: number): string {
  const whole = Math.round(seconds);
  const rest = whole % 60;
  return whole < 60 ? `${whole} s` : `${Math.floor(whole / 60)} min${rest === 0 ? "" : ` ${rest} s`}`;
}
