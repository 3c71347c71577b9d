import { networkInterfaces } from "node:os";

/** Says in the run's output that tests are absent because this machine lacks something: nobody would miss them otherwise. */
export function noteAbsence(lacking: string, absent: string): void {
  console.warn(`NOT TESTED, because this machine lacks ${lacking}: ${absent}`);
}

export const hasIpv6 = Object.values(networkInterfaces()).some((found) =>
  found?.some(({ address }) => address === "::1"),
);
