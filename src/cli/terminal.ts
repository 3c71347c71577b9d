/** Makes text safe for a terminal and measures its width. */

import { styleText } from "node:util";

export type Json = string | number | boolean | null | readonly Json[] | { readonly [name: string]: Json };

/**
 * Control and invisible formatting characters: they would move the cursor, or colour, reorder or hide the text around them.
 * Joiners (U+200C, U+200D) are allowed because scripts and emoji need them.
 */
const unprintable = /[\p{Cc}\p{Zl}\p{Zp}]|(?![\u200c\u200d])\p{Cf}/gu;

const shortEscapes = new Map([
  ["\n", "\\n"],
  ["\r", "\\r"],
  ["\t", "\\t"],
]);

/** Makes untrusted text safe for a terminal: characters that do not print are shown as escapes. */
export function escapeControls(text: string): string {
  return text.replace(unprintable, (character) => {
    const short = shortEscapes.get(character);
    if (short !== undefined) return short;
    const code = character.codePointAt(0) ?? 0;
    if (code <= 0xff) return `\\x${code.toString(16).padStart(2, "0")}`;
    return code <= 0xffff ? `\\u${code.toString(16).padStart(4, "0")}` : `\\u{${code.toString(16)}}`;
  });
}

/** JSON on one line. Characters that JSON leaves unescaped but a terminal interprets (DEL, C1, U+202E, …) are escaped too. */
export function safeJson(value: Json): string {
  return JSON.stringify(value).replace(unprintable, (character) =>
    Array.from({ length: character.length }, (_, index) => {
      return `\\u${character.charCodeAt(index).toString(16).padStart(4, "0")}`;
    }).join(""),
  );
}

const wide =
  /^(?:[\u1100-\u115f\u2e80-\u303e\u3041-\u4dbf\u4e00-\ua4cf\ua960-\ua97f\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6\u{20000}-\u{3fffd}]|\p{Emoji_Presentation}|\p{Emoji}\ufe0f)/u;

const graphemes = new Intl.Segmenter("ko", { granularity: "grapheme" });

/** The terminal columns that the text occupies: Hangul, Han, full-width forms and emoji take two. */
export function displayWidth(text: string): number {
  if (/^[\x20-\x7e]*$/.test(text)) return text.length;
  let width = 0;
  for (const { segment } of graphemes.segment(text)) width += graphemeWidth(segment);
  return width;
}

function graphemeWidth(segment: string): number {
  if (wide.test(segment)) return 2;
  return /^[\p{Mn}\p{Me}\p{Cf}]/u.test(segment) ? 0 : 1;
}

/** The text cut to at most `width` columns; if cut, the last one is `…`. */
export function truncate(text: string, width: number): string {
  if (displayWidth(text) <= width) return text;
  let kept = "";
  let left = width - 1;
  for (const { segment } of graphemes.segment(text)) {
    left -= graphemeWidth(segment);
    if (left < 0) break;
    kept += segment;
  }
  return `${kept}…`;
}

/** As `truncate`, with the cut in the middle. */
export function truncateMiddle(text: string, width: number): string {
  if (displayWidth(text) <= width) return text;
  let end = "";
  let left = Math.floor((width - 1) / 2);
  for (const { segment } of [...graphemes.segment(text)].reverse()) {
    left -= graphemeWidth(segment);
    if (left < 0) break;
    end = segment + end;
  }
  return truncate(text, width - displayWidth(end)) + end;
}

export function padEnd(text: string, width: number): string {
  return text + " ".repeat(Math.max(0, width - displayWidth(text)));
}

/** The width to lay out for: the terminal's, else `COLUMNS`, else unlimited. */
export function outputColumns(): number {
  const columns = process.stdout.columns ?? Number.parseInt(process.env.COLUMNS ?? "", 10);
  return columns > 0 ? columns : Number.POSITIVE_INFINITY;
}

type Style = Parameters<typeof styleText>[0];

/** Styled on a terminal; plain otherwise and under NO_COLOR. */
export function styled(style: Style, text: string): string {
  return process.stdout.isTTY ? styleText(style, text, { stream: process.stdout }) : text;
}
