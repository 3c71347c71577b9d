/** Tables for several objects and label-value lists for one. */

import {
  displayWidth,
  escapeControls,
  outputColumns,
  padEnd,
  styled,
  truncate,
  truncateMiddle,
} from "./terminal.ts";

export interface Column<Row> {
  readonly heading: string;
  /** A date or null is a timestamp, shown without year and seconds if there is no room for them. */
  readonly value: (row: Row) => string | Date | null;
  /** The column's importance. 1 always stays; if room is short, the highest rank is left out first. */
  readonly rank: number;
  /** The width in terminal columns that this column may be shortened to, with `…`, before another one is left out. */
  readonly shortens?: number;
  /** Shortens in the middle, so that the end stays: it distinguishes ids. */
  readonly keepsEnd?: true;
  readonly colour?: (value: string) => Parameters<typeof styled>[0] | undefined;
}

export interface Table {
  readonly text: string;
  /** The headings of the columns that were left out for lack of room. */
  readonly leftOut: readonly string[];
}

const gap = "  ";

/** A free text that is shortened further is meaningless. */
export const shortestText = 8;

export function table<Row>(columns: readonly Column<Row>[], rows: readonly Row[]): string {
  const { text, leftOut } = layOut(columns, rows);
  return [text, ...leftOutNote(leftOut)].join("\n");
}

/** Names the columns that were left out, so that nobody concludes that they do not exist. */
export function leftOutNote(headings: Iterable<string>): string[] {
  const named = [...headings].join(", ");
  if (named === "") return [];
  return [styled("dim", `No room for ${named}: a wider terminal or --json shows them.`)];
}

export function layOut<Row>(columns: readonly Column<Row>[], rows: readonly Row[]): Table {
  const values = columns.map(({ value }) => rows.map(value));
  const cells = values.map((column) => column.map((value) => escapeControls(textOf(value))));
  const briefCells = values.map((column) => column.map((value) => escapeControls(textOf(value, briefTime))));
  const widths = fittingWidths(
    columns.map(({ heading, rank, shortens }, index) => {
      const width = widest([heading, ...(cells[index] ?? [])]);
      const brief = widest([heading, ...(briefCells[index] ?? [])]);
      return { rank, width, least: Math.min(brief, shortens ?? brief), inSteps: brief < width };
    }),
    outputColumns(),
  );
  const line = (cell: (index: number) => string, paint: (text: string, index: number) => string) =>
    columns
      .flatMap(({ keepsEnd }, index) => {
        const width = widths[index] ?? 0;
        if (width === 0) return [];
        const fitting = keepsEnd ? truncateMiddle(cell(index), width) : truncate(cell(index), width);
        return [paint(padEnd(fitting, width), index)];
      })
      .join(gap)
      .trimEnd();
  const heading = line(
    (index) => columns[index]?.heading ?? "",
    (text) => styled("bold", text),
  );
  const shown = cells.map((texts, index) => {
    const fits = widest(texts) <= (widths[index] ?? 0);
    return fits ? texts : (briefCells[index] ?? []);
  });
  const body = rows.map((_, row) =>
    line(
      (index) => shown[index]?.[row] ?? "",
      (text, index) => {
        const colour = columns[index]?.colour?.(text.trimEnd());
        return colour === undefined ? text : styled(colour, text);
      },
    ),
  );
  return {
    text: [heading, ...body].join("\n"),
    leftOut: columns
      .filter((_, index) => widths[index] === 0)
      .map((column) => column.heading.trim())
      .filter((name) => name !== ""),
  };
}

function textOf(value: string | Date | null, instant = localTime): string {
  return typeof value === "string" ? value : instant(value);
}

function widest(texts: readonly string[]): number {
  return texts.reduce((most, text) => Math.max(most, displayWidth(text)), 0);
}

interface Fitting {
  readonly rank: number;
  readonly width: number;
  readonly least: number;
  /** Only the two widths are useful, nothing between them. */
  readonly inSteps: boolean;
}

/** Widths that fit one line; 0 for a column that is left out. Spare room goes to the most important columns. */
function fittingWidths(columns: readonly Fitting[], available: number): number[] {
  const widths = columns.map(() => 0);
  const byImportance = columns
    .map((column, index) => ({ ...column, index }))
    .sort((one, other) => one.rank - other.rank);
  let room = available + gap.length;
  for (const { index, rank, least } of byImportance) {
    // A less important column must not take the room of one that was left out.
    if (rank > 1 && least + gap.length > room) break;
    widths[index] = least;
    room -= least + gap.length;
  }
  for (const { index, width, least, inSteps } of byImportance) {
    if (widths[index] === 0 || room <= 0 || (inSteps && width - least > room)) continue;
    const more = Math.min(width - least, room);
    widths[index] = least + more;
    room -= more;
  }
  return widths;
}

/** One object: one label and value per line. Values are never shortened, so that they can be copied. */
export function fields(entries: readonly (readonly [label: string, value: string | null])[]): string {
  const width = Math.max(...entries.map(([label]) => displayWidth(label)));
  return entries
    .map(([label, value]) => `${styled("dim", padEnd(label, width))}${gap}${escapeControls(value ?? "-")}`)
    .join("\n");
}

/** `2026-11-21 15:41:00`, in this machine's time zone. */
export function localTime(date: Date | null): string {
  if (date === null) return "-";
  const two = (part: number) => String(part).padStart(2, "0");
  const day = [date.getFullYear(), two(date.getMonth() + 1), two(date.getDate())].join("-");
  return `${day} ${[date.getHours(), date.getMinutes(), date.getSeconds()].map(two).join(":")}`;
}

const halfYearMs = 183 * 86_400_000;

/** `11-21 15:41`, or the day if it is half a year away or more: `2025-11-21`. */
function briefTime(date: Date | null): string {
  const whole = localTime(date);
  if (date === null) return whole;
  const isNear = Math.abs(date.getTime() - Date.now()) < halfYearMs;
  return isNear ? whole.slice("2026-".length, -":00".length) : whole.slice(0, "2026-11-21".length);
}

/** `2026-11-21 15:41:00 +09:00`, for label-value lists, which have room for the zone. */
export function localTimeWithZone(date: Date | null): string | null {
  if (date === null) return null;
  const offset = -date.getTimezoneOffset();
  const two = (part: number) => String(Math.floor(Math.abs(part))).padStart(2, "0");
  return `${localTime(date)} ${offset < 0 ? "-" : "+"}${two(offset / 60)}:${two(offset % 60)}`;
}

export function grouped(count: number): string {
  return count.toLocaleString("en-US");
}
