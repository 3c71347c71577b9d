/** Progress of a long stream: a line that is redrawn on a terminal, and a table at the end. */

import { grouped, table } from "./layout.ts";
import { displayWidth, truncate } from "./terminal.ts";

/** Counts of the outcomes so far. */
export class Tally {
  readonly byOutcome = new Map<string, number>();
  messages = 0;
  duplicates = 0;
  bytes = 0;
  readonly #startedAt = performance.now();

  count(outcome: string): void {
    this.byOutcome.set(outcome, (this.byOutcome.get(outcome) ?? 0) + 1);
  }

  get seconds(): number {
    return (performance.now() - this.#startedAt) / 1_000;
  }

  get perSecond(): number {
    return this.messages / this.seconds;
  }

  /** Most frequent first. */
  outcomes(): [outcome: string, count: number][] {
    return [...this.byOutcome].sort(([, one], [, other]) => other - one);
  }
}

/** Below this share of the input, the remaining time cannot be estimated. */
const minShareForEstimate = 0.01;

/** Outcomes that do not fit into `columns` are summed up as "others". */
export function progressLine(tally: Tally, totalBytes: number | undefined, columns: number): string {
  const parts = [grouped(tally.messages)];
  if (totalBytes !== undefined && totalBytes > 0) {
    const done = Math.min(1, tally.bytes / totalBytes);
    parts.push(`${Math.floor(done * 100)}% of ${megabytes(totalBytes)}`);
    if (done >= minShareForEstimate && done < 1)
      parts.push(`${clock((tally.seconds / done) * (1 - done))} left`);
  }
  parts.push(`${grouped(Math.round(tally.perSecond))}/s`);
  const outcomes = tally.outcomes();
  for (let named = outcomes.length; ; named--) {
    const others = outcomes.slice(named).reduce((sum, [, count]) => sum + count, 0);
    const listed = outcomes.slice(0, named).map(([outcome, count]) => `${outcome} ${grouped(count)}`);
    const line = [...parts, ...listed, ...(others > 0 ? [`others ${grouped(others)}`] : [])].join("  ");
    if (named === 0 || displayWidth(line) <= columns) return line;
  }
}

export function summary(tally: Tally): string {
  const rate = `${grouped(Math.round(tally.perSecond))} per second`;
  const repeated = tally.duplicates === 0 ? "" : `, ${grouped(tally.duplicates)} of them duplicates`;
  const total = `${grouped(tally.messages)} receipts in ${tally.seconds.toFixed(1)} s (${rate})${repeated}.`;
  if (tally.byOutcome.size === 0) return total;
  const outcomes = table(
    [
      { heading: "OUTCOME", value: ([outcome]: [string, number]) => outcome, rank: 1 },
      { heading: "MESSAGES", value: ([, count]) => grouped(count).padStart("MESSAGES".length), rank: 1 },
    ],
    tally.outcomes(),
  );
  return `${outcomes}\n\n${total}`;
}

function megabytes(bytes: number): string {
  return bytes < 1_000_000
    ? `${Math.ceil(bytes / 1_000)} kB`
    : `${grouped(Math.round(bytes / 100_000) / 10)} MB`;
}

/** `0:07`, `12:30`, `3:05:00` */
function clock(seconds: number): string {
  const whole = Math.ceil(seconds);
  const two = (part: number) => String(part).padStart(2, "0");
  const hours = Math.floor(whole / 3_600);
  const minutes = Math.floor(whole / 60) % 60;
  return hours > 0 ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
}

/** A line on stderr that is redrawn until it is cleared; nothing if stderr is not a terminal. */
export class ProgressDisplay {
  readonly #line: (columns: number) => string;
  readonly #timer: NodeJS.Timeout | undefined;

  constructor(shown: boolean, line: (columns: number) => string) {
    this.#line = line;
    this.#timer = shown ? setInterval(() => this.#draw(), 200) : undefined;
  }

  /** Prints a permanent line above the redrawn one. */
  print(text: string): void {
    this.#erase();
    process.stderr.write(`${text}\n`);
  }

  clear(): void {
    clearInterval(this.#timer);
    this.#erase();
  }

  #draw(): void {
    const columns = (process.stderr.columns || 80) - 1;
    process.stderr.write(`\r\x1b[2K${truncate(this.#line(columns), columns)}`);
  }

  #erase(): void {
    if (this.#timer !== undefined) process.stderr.write("\r\x1b[2K");
  }
}
