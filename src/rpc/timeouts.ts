/** The timeout of a call, as its headers give it. */

import type http2 from "node:http2";

const longestTimerMs = 2 ** 31 - 1;
const msByUnit: Readonly<Record<string, number>> = {
  H: 3_600_000,
  M: 60_000,
  S: 1_000,
  m: 1,
  u: 1e-3,
  n: 1e-6,
  "": 1,
};

/** Digits and unit, by header. */
const timeouts = { "grpc-timeout": /^(\d{1,8})([HMSmun])$/, "connect-timeout-ms": /^(\d{1,10})()$/ };

/**
 * Returns the timeout in milliseconds; undefined if there is none, or none that can be parsed. Deletes a timeout that
 * is longer than Node's timers: Connect's timer would fire, and end the call, at once. The client still applies its
 * own.
 */
export function takeTimeout(headers: http2.IncomingHttpHeaders): number | undefined {
  const isGrpc = headers["content-type"]?.startsWith("application/grpc") === true;
  const header = isGrpc ? "grpc-timeout" : "connect-timeout-ms";
  const given = headers[header];
  if (given === undefined) return undefined;
  const [, digits, unit = ""] = timeouts[header].exec(String(given)) ?? [];
  if (digits === undefined) return undefined;
  const milliseconds = Number(digits) * (msByUnit[unit] ?? 0);
  if (milliseconds <= longestTimerMs) return milliseconds;
  delete headers[header];
  return undefined;
}
