/** How long a client gives its call, as its headers say. */

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

/** By header: digits and unit. */
const timeouts = { "grpc-timeout": /^(\d{1,8})([HMSmun])$/, "connect-timeout-ms": /^(\d{1,10})()$/ };

/**
 * In milliseconds; undefined where it gives none, or none that can be read. One that is longer than timers are is taken away:
 * Connect's would go off, and end the call, at once. The client keeps its own.
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
