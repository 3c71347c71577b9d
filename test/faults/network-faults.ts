/** Faults of the network between the service and its Postgres. */

import { setTimeout as delay } from "node:timers/promises";
import type { NetworkState } from "./database-proxy.ts";
import type { Fault } from "./faults.ts";

const recoversWithinMs = 2_000;

/** Puts the network into this state for a random time from `least` to `most` milliseconds, then back to normal. */
function networkFault(name: string, networkState: NetworkState, least: number, most: number): Fault {
  return {
    name,
    processes: 2,
    recoversWithinMs,
    async apply({ network }, random) {
      await network.setState(networkState);
      await delay(random.between(least, most));
      await network.setState("fine");
    },
  };
}

/** The statements that change what a client may have been answered. */
const changing = [
  "create_new",
  "create",
  "cancel",
  "inbound_plain",
  "inbound_store",
  "expire",
  "claim_webhook_attempts",
  "record_webhook_attempts",
];

export const networkFaults: readonly Fault[] = [
  networkFault("refused", "refused", 500, 2_500),
  networkFault("black-hole", "black hole", 500, 3_000),
  // Longer than every timeout for the database.
  networkFault("long-black-hole", "black hole", 14_000, 18_000),
  networkFault("dead-connections", "dead", 500, 3_000),
  networkFault("slow", "slow", 1_000, 3_000),
  {
    name: "reset",
    processes: 2,
    recoversWithinMs,
    async apply({ network }, random) {
      for (let left = 1 + random.below(8); left > 0; left--) {
        network.reset();
        await delay(random.between(0, 300));
      }
    },
  },
  {
    // The client does not learn whether its statement was committed, and repeats its call.
    name: "cut-commit",
    processes: 2,
    recoversWithinMs,
    async apply({ network, journal }, random) {
      for (let left = 6; left > 0; left--) {
        const when = random.pick(["sent", "answered"] as const);
        const statement = await network.cutAt(changing, when);
        journal.append({ what: "fault", name: "cut-commit", note: `${statement}, ${when}` });
        await delay(random.between(0, 200));
      }
    },
  },
];
