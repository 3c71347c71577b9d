/** Parsers for option values. A value that cannot be valid is wrong usage; limits are left to the service. */

import { InvalidArgumentError, Option } from "commander";
import { environments } from "./words.ts";

const secondsPerUnit = new Map([
  ["s", 1],
  ["m", 60],
  ["h", 3_600],
  ["d", 86_400],
  ["w", 604_800],
]);

/** `90s`, `15m`, `72h`, `30d`, `2w` as seconds. */
export function durationSeconds(text: string): number {
  const [, count, unit = ""] = /^(\d{1,9})([smhdw])$/.exec(text) ?? [];
  const perUnit = secondsPerUnit.get(unit);
  if (count === undefined || perUnit === undefined) {
    throw new InvalidArgumentError("Write a number and s, m, h, d or w: 90s, 72h, 30d.");
  }
  return Number(count) * perUnit;
}

/**
 * For options that select one object. An empty value would select all of them, which is never the intention: a script's
 * `--project "$PROJECT"` with that variable unset.
 */
export function nonEmpty(text: string): string {
  if (text === "") throw new InvalidArgumentError("It must not be empty.");
  return text;
}

/** Up to the largest int32, the type of the integer fields of the service's messages. */
export function wholeNumber(text: string): number {
  const value = Number(text);
  if (!/^\d+$/.test(text) || value > 2_147_483_647) {
    throw new InvalidArgumentError("Write a whole number, at most 2147483647.");
  }
  return value;
}

/** A limit, or `unlimited` for none. */
export function wholeNumberOrUnlimited(text: string): number | "unlimited" {
  if (text === "unlimited") return text;
  const value = Number(text);
  if (!/^\d+$/.test(text) || !Number.isSafeInteger(value)) {
    throw new InvalidArgumentError(`Write a whole number, at most ${Number.MAX_SAFE_INTEGER}, or unlimited.`);
  }
  return value;
}

export function atLeastOne(text: string): number {
  const value = wholeNumber(text);
  if (value === 0) throw new InvalidArgumentError("Write a whole number from 1.");
  return value;
}

/** For options that may be repeated; each value may hold several, separated by commas. */
export function several(text: string, before: readonly string[] = []): readonly string[] {
  return [...before, ...text.split(",").map((part) => part.trim())];
}

/** As `several`, but accepts only the given choices. */
export function severalOf(choices: readonly string[]): typeof several {
  return (text, before) => {
    const words = several(text, before);
    if (words.every((word) => choices.includes(word))) return words;
    throw new InvalidArgumentError(`Allowed choices are ${choices.join(", ")}.`);
  };
}

export function environmentOption(description: string): Option {
  return new Option("--environment <environment>", description).choices(environments);
}

const rfc3339 = /^(\d{4}-\d{2}-\d{2})[Tt ](?:[01]\d|2[0-3]):\d{2}:\d{2}(?:\.\d+)?(?:[Zz]|[+-]\d{2}:\d{2})$/;

/** Parses an RFC 3339 timestamp, whose time zone is mandatory. Undefined if it is not one. */
export function parseRfc3339(text: string): Date | undefined {
  const [, day] = rfc3339.exec(text) ?? [];
  if (day === undefined || !isDay(day)) return undefined;
  const date = new Date(text.toUpperCase().replace(" ", "T"));
  return Number.isNaN(date.getTime()) ? undefined : date;
}

/** Rejects days that JavaScript would accept and shift: it reads 2026-02-30 as 2 March. */
function isDay(day: string): boolean {
  const date = new Date(`${day}T00:00:00Z`);
  return !Number.isNaN(date.getTime()) && date.toISOString().startsWith(day);
}

/** An RFC 3339 timestamp, or a duration before now. */
export function instant(text: string): Date {
  const date = parseRfc3339(text) ?? ago(text);
  // A duration may reach back further than a Date can represent.
  if (date === undefined || Number.isNaN(date.getTime())) {
    throw new InvalidArgumentError(
      "Write an RFC 3339 time with its zone (2026-11-21T06:41:00Z, 2026-11-21T15:41:00+09:00) or how long ago it was (24h).",
    );
  }
  return date;
}

function ago(text: string): Date | undefined {
  try {
    return new Date(Date.now() - durationSeconds(text) * 1_000);
  } catch {
    return undefined;
  }
}
