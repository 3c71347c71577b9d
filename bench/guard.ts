/**
 * Checks whether a request costs more CPU than it should, relative to the bare server's CPU, so that the machine's speed
 * cancels out.
 */

import type { OperationName } from "./operations.ts";
import type { Report } from "./report.ts";

/**
 * CPU of service and Postgres together, divided by the bare server's: the measured value plus half. A smaller margin would fail
 * from the effects of other processes on CPU caches. Lower these when a request becomes cheaper.
 */
const mostWork: Partial<Record<OperationName, number>> = { create: 8, read: 7, inbound: 8 };

export const guardedOperations = Object.keys(mostWork) as OperationName[];

/** One line per operation, and whether all are within their bounds. */
export function guard({ operations }: Report): {
  readonly lines: readonly string[];
  readonly holds: boolean;
} {
  let holds = true;
  const lines = operations.map(({ operation, arms }) => {
    const of = (name: "bare" | "service") => arms.find(({ arm }) => arm === name)?.medians;
    const service = of("service");
    const bare = of("bare")?.serverCpu;
    const most = mostWork[operation] ?? Number.POSITIVE_INFINITY;
    if (service?.serverCpu == null || service.postgresCpu == null || bare == null) {
      holds = false;
      return `${operation}: CPU times are not known here`;
    }
    const work = (service.serverCpu + service.postgresCpu) / bare;
    if (work > most) holds = false;
    return `${operation.padEnd(8)} ${work.toFixed(1)} times the bare server's CPU, at most ${most}${work > most ? ": TOO MUCH" : ""}`;
  });
  return { lines, holds };
}
