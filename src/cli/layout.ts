/** Tables for many things and label-value lists for one. */

import { displayWidth, escapeControls, outputColumns, padEnd, styled, truncate } from "./terminal.ts";

export interface Column<Row> {
  readonly heading: string;
  readonly value: (row: Row) => string;
  /** How much it matters. 1 always stays; of the others the highest is left out first where room is short. */
  readonly rank: number;
  /** Free text, of which the beginning says enough: cut off with `…` before another column is left out. */
  readonly shortens?: true;
  readonly colour?: (value: string) => Parameters<typeof styled>[0] | undefined;
}

const gap = "  ";

/** Shortened further, a text says nothing any more. */
const shortest = 8;

export function table<Row>(columns: readonly Column<Row>[], rows: readonly Row[]): string {
  const cells = columns.map((column) => rows.map((row) => escapeControls(column.value(row))));
  const widths = fittingWidths(
    columns.map(({ rank, shortens = false, heading }, index) => {
      const texts = [heading, ...(cells[index] ?? [])];
      const width = texts.reduce((widest, text) => Math.max(widest, displayWidth(text)), 0);
      return { rank, width, least: shortens ? Math.min(width, shortest) : width };
    }),
    outputColumns(),
  );
  const line = (cell: (index: number) => string, paint: (text: string, index: number) => string) =>
    columns
      .flatMap((_, index) => {
        const width = widths[index] ?? 0;
        return width === 0 ? [] : [paint(padEnd(truncate(cell(index), width), width), index)];
      })
      .join(gap)
      .trimEnd();
  const heading = line(
    (index) => columns[index]?.heading ?? "",
    (text) => styled("bold", text),
  );
  const body = rows.map((_, row) =>
    line(
      (index) => cells[index]?.[row] ?? "",
      (text, index) => {
        const colour = columns[index]?.colour?.(text.trimEnd());
        return colour === undefined ? text : styled(colour, text);
      },
    ),
  );
  return [heading, ...body].join("\n");
}

/** The widths that make a line fit, 0 for a column that has no room. What is left over goes to what matters most. */
function fittingWidths(
  columns: readonly { rank: number; width: number; least: number }[],
  available: number,
): number[] {
  const widths = columns.map(() => 0);
  const byImportance = columns
    .map((column, index) => ({ ...column, index }))
    .sort((one, other) => one.rank - other.rank);
  let room = available + gap.length;
  for (const { index, rank, least } of byImportance) {
    // Nothing less important may take the place of what had no room.
    if (rank > 1 && least + gap.length > room) break;
    widths[index] = least;
    room -= least + gap.length;
  }
  for (const { index, width, least } of byImportance) {
    if (widths[index] === 0 || room <= 0) continue;
    const more = Math.min(width - least, room);
    widths[index] = least + more;
    room -= more;
  }
  return widths;
}

/** One thing: a label and a value a line. Values are not shortened, they are there to be copied. */
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

/** `2026-11-21 15:41:00 +09:00`, for a single thing, where there is room for the zone. */
export function localTimeWithZone(date: Date | null): string | null {
  if (date === null) return null;
  const offset = -date.getTimezoneOffset();
  const two = (part: number) => String(Math.floor(Math.abs(part))).padStart(2, "0");
  return `${localTime(date)} ${offset < 0 ? "-" : "+"}${two(offset / 60)}:${two(offset % 60)}`;
}

export function grouped(count: number): string {
  return count.toLocaleString("en-US");
}
