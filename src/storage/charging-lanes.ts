/**
 * Lanes of statements that charge calls. Two with a project in common meet at its usage row: on connections of their own the second
 * would stand waiting for the first's commit, and cost the database a wait and a second look at the row. Here it follows on the
 * connection of the first, whatever kind either is of. Such as have no project in common go beside each other. Whatever can goes
 * over one connection, whose process in the server has at hand what the last one needed.
 */

import type { Database, Lane, Statements } from "./database.ts";
import type { Demand } from "./usage.ts";

export interface ChargingLane {
  /** As of `Lane`. */
  readonly isPipelined: boolean;
  /** `statements` charge what `demand` says, on the connection they are handed. */
  charge<T>(demand: Demand, statements: (connection: Statements) => Promise<T>): Promise<T>;
}

interface UnderWay {
  readonly lane: Lane;
  readonly callsOf: Demand["callsOf"];
}

/** Answers what opens one; those that are opened by it heed one another. */
export function createChargingLanes(database: Database): () => ChargingLane {
  const common = database.openLane();
  /** In the order they were sent. */
  const underWay = new Set<UnderWay>();

  /** Undefined: a lane that nobody else is on. */
  function laneFor(callsOf: Demand["callsOf"]): Lane | undefined {
    let inCommon: Lane | undefined;
    let isCommonFree = true;
    for (const other of underWay) {
      if (other.lane === common) isCommonFree = false;
      // Of several the last, behind which it has to wait anyway.
      if (other.lane !== inCommon && shareOne(callsOf, other.callsOf)) inCommon = other.lane;
    }
    return inCommon ?? (isCommonFree ? common : undefined);
  }

  return () => {
    const own = database.openLane();
    return {
      isPipelined: own.isPipelined,
      async charge({ callsOf }, statements) {
        const charging = { lane: laneFor(callsOf) ?? own, callsOf };
        underWay.add(charging);
        try {
          return await statements(charging.lane);
        } finally {
          underWay.delete(charging);
        }
      },
    };
  };
}

function shareOne(some: Demand["callsOf"], others: Demand["callsOf"]): boolean {
  for (const projectId of some.keys()) if (others.has(projectId)) return true;
  return false;
}
