/** The retry schedule of deliveries. */

import { retryPollMs } from "../core/webhook.ts";

const minute = 60;
const hour = 3_600;

/** Seconds from each failed attempt to the next one. The first attempt is made at once; ten in all. */
export const retryDelaysSeconds: readonly number[] = [
  5,
  5 * minute,
  30 * minute,
  2 * hour,
  5 * hour,
  10 * hour,
  14 * hour,
  20 * hour,
  24 * hour,
];

/** Jitter keeps deliveries that failed together from coming back together. */
const jitter = 0.2;
/** How late an attempt may begin: one polling interval and the time polling itself takes. The jitter leaves room for it. */
const lateSeconds = (retryPollMs + 100) / 1000;

const maxRetryAfterSeconds = 24 * hour;

/**
 * Seconds until the next attempt after the `failures`-th failure, null after the last. The endpoint's Retry-After is a lower
 * bound, respected up to 24 hours; it never makes an attempt earlier than the schedule does. `random` is from 0 to 1.
 */
export function secondsUntilNext(
  failures: number,
  retryAfterSeconds: number | null,
  random: number = Math.random(),
): number | null {
  const gap = retryDelaysSeconds[failures - 1];
  if (gap === undefined) return null;
  const scheduled = gap * (1 - jitter) + (gap * 2 * jitter - lateSeconds) * random;
  return Math.max(scheduled, Math.min(retryAfterSeconds ?? 0, maxRetryAfterSeconds));
}

/**
 * RFC 9110: a delay in seconds, or an HTTP date in its current or its two obsolete forms, of which asctime's has no time zone.
 */
const wholeSeconds = /^\d+$/;
const timeOfDay = String.raw`\d{2}:\d{2}:\d{2}`;
const httpDateForms = [
  new RegExp(`^[A-Z][a-z]{2}, (\\d{2}) [A-Z][a-z]{2} \\d{4} ${timeOfDay} GMT$`),
  new RegExp(`^[A-Z][a-z]{5,8}, (\\d{2})-[A-Z][a-z]{2}-\\d{2} ${timeOfDay} GMT$`),
  new RegExp(`^[A-Z][a-z]{2} [A-Z][a-z]{2} ([ \\d]\\d) ${timeOfDay} \\d{4}$`),
];

/** Milliseconds since the epoch; NaN unless it is an HTTP date. `Date.parse` alone turns "31 Feb" into a day in March. */
function parseHttpDate(text: string): number {
  const day = httpDateForms.map((form) => form.exec(text)?.[1]).find((found) => found !== undefined);
  if (day === undefined) return Number.NaN;
  const at = Date.parse(text.endsWith("GMT") ? text : `${text} GMT`);
  return new Date(at).getUTCDate() === Number(day) ? at : Number.NaN;
}

/** The seconds from `now` (milliseconds since the epoch) that a Retry-After header asks for; null if missing or malformed. */
export function retryAfterSeconds(header: string | null, now: number): number | null {
  const text = header?.trim() ?? "";
  if (wholeSeconds.test(text)) return Number(text);
  const at = parseHttpDate(text);
  return Number.isNaN(at) ? null : Math.max(0, (at - now) / 1000);
}
