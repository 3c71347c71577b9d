/** The faults that are applied to the service, by name. */

import { databaseFaults } from "./database-faults.ts";
import { fleetFaults } from "./fleet-faults.ts";
import { killFaults } from "./kills.ts";
import { migrationFaults } from "./migration-faults.ts";
import { networkFaults } from "./network-faults.ts";
import { orderFaults } from "./order-faults.ts";
import { pauseFaults } from "./pause-faults.ts";
import type { Random } from "./random.ts";
import type { Setting, World } from "./world.ts";

export interface Fault {
  readonly name: string;
  /** The kind of world that the fault needs. */
  readonly setting?: Setting;
  /** Processes of the service in its world. */
  readonly processes: number;
  /** The time within which everything must work again afterwards, on every process. */
  readonly recoversWithinMs: number;
  /** Applies the fault; resolves when it is over. */
  apply(world: World, random: Random): Promise<void>;
}

export const faults: readonly Fault[] = [
  ...killFaults,
  ...pauseFaults,
  ...networkFaults,
  ...databaseFaults,
  ...fleetFaults,
  ...orderFaults,
  ...migrationFaults,
];

/** The fault of this name; throws if there is none. */
export function faultNamed(name: string): Fault {
  const found = faults.find((fault) => fault.name === name);
  if (found === undefined) throw new Error(`--only must list some of ${faults.map((fault) => fault.name)}`);
  return found;
}
