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
  /** By performance.now(). */
  readonly since: number;
}

/**
 * Nothing follows what takes so long: its turn, and with it the time that the server gives a statement, would come no sooner than all
 * before it have had theirs. At the row it waits within its own.
 */
const tooSlowToFollowMs = 1_000;

/** Answers what opens one; those that are opened by it heed one another. */
export function createChargingLanes(database: Database): () => ChargingLane {
  const common = database.openLane();
  /** In the order they were sent. */
  const underWay = new Set<UnderWay>();

  /** Undefined: that of its own kind. */
  function laneFor({ callsOf, since }: Omit<UnderWay, "lane">): Lane | undefined {
    let inCommon: Lane | undefined;
    let isCommonFree = true;
    for (const other of underWay) {
      if (other.lane === common) isCommonFree = false;
      if (since - other.since > tooSlowToFollowMs) continue;
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
        const asked = { callsOf, since: performance.now() };
        const charging = { ...asked, lane: laneFor(asked) ?? own };
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
