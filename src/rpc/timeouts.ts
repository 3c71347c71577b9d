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
const timeoutHeaders = ["grpc-timeout", "connect-timeout-ms"] as const;

/** In milliseconds; undefined where it gives none, or none that can be read. */
export function timeoutMs(headers: http2.IncomingHttpHeaders): number | undefined {
  const isGrpc = headers["content-type"]?.startsWith("application/grpc");
  return timeoutIn(headers, isGrpc ? "grpc-timeout" : "connect-timeout-ms");
}

/** Connect's timer holds no longer ones and would end the call at once. The client keeps its own. */
export function dropLongTimeouts(headers: http2.IncomingHttpHeaders): void {
  for (const header of timeoutHeaders) {
    if ((timeoutIn(headers, header) ?? 0) > longestTimerMs) delete headers[header];
  }
}

function timeoutIn(
  headers: http2.IncomingHttpHeaders,
  header: (typeof timeoutHeaders)[number],
): number | undefined {
  const given = headers[header];
  if (given === undefined) return undefined;
  const [, digits, unit = ""] = timeouts[header].exec(String(given)) ?? [];
  return digits === undefined ? undefined : Number(digits) * (msByUnit[unit] ?? 0);
}
