/** How the values of options are read. A value that cannot be meant is wrong usage; limits are the service's. */

import { InvalidArgumentError, Option } from "commander";
import { environments } from "./words.ts";

const secondsPerUnit = new Map([
  ["s", 1],
  ["m", 60],
  ["h", 3_600],
  ["d", 86_400],
  ["w", 604_800],
]);

/** `90s`, `15m`, `72h`, `30d`, `2w` in seconds. */
export function durationSeconds(text: string): number {
  const [, count, unit = ""] = /^(\d{1,9})([smhdw])$/.exec(text) ?? [];
  const perUnit = secondsPerUnit.get(unit);
  if (count === undefined || perUnit === undefined) {
    throw new InvalidArgumentError("Write a number and s, m, h, d or w: 90s, 72h, 30d.");
  }
  return Number(count) * perUnit;
}

/**
 * For what tells one thing from all others. Empty it would mean all of them, which is not what somebody meant who wrote
 * the option: `--project "$PROJECT"` of a script without that variable.
 */
export function nonEmpty(text: string): string {
  if (text === "") throw new InvalidArgumentError("It must not be empty.");
  return text;
}

/** As much as every integer field of the service's messages holds. */
export function wholeNumber(text: string): number {
  const value = Number(text);
  if (!/^\d+$/.test(text) || value > 2_147_483_647) {
    throw new InvalidArgumentError("Write a whole number, at most 2147483647.");
  }
  return value;
}

/** A limit, or its absence. */
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

/** For options that may be given several times; each may hold several values, separated by commas. */
export function several(text: string, before: readonly string[] = []): readonly string[] {
  return [...before, ...text.split(",").map((part) => part.trim())];
}

/** The same for values out of a list. */
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

/** RFC 3339, with its time zone. */
export function parseRfc3339(text: string): Date | undefined {
  const [, day] = rfc3339.exec(text) ?? [];
  if (day === undefined || !isDay(day)) return undefined;
  const date = new Date(text.toUpperCase().replace(" ", "T"));
  return Number.isNaN(date.getTime()) ? undefined : date;
}

/** JavaScript takes 2026-02-30 for the second of March. */
function isDay(day: string): boolean {
  const date = new Date(`${day}T00:00:00Z`);
  return !Number.isNaN(date.getTime()) && date.toISOString().startsWith(day);
}

/** An instant, or how long ago it was. */
export function instant(text: string): Date {
  const date = parseRfc3339(text) ?? ago(text);
  // So long ago that there is no such date.
  if (date === undefined || Number.isNaN(date.getTime())) {
    throw new InvalidArgumentError(
      "Write an instant of RFC 3339 (2026-11-21T06:41:00Z) or how long ago it was (24h).",
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
