import { type Environment, environments } from "./project.ts";
import { type ReceptionRow, type SilentName, silencesIn } from "./silence.ts";

/** What came in of late by each number and carrier, all projects together. */
export interface ReceptionStore {
  read(): Promise<{
    readonly countedUntil: number;
    readonly rows: readonly (ReceptionRow & { readonly environment: Environment })[];
    /** Numbers that take new verifications. */
    readonly inUse: ReadonlySet<string>;
  }>;
}

export interface FoundSilences {
  /** Milliseconds since the epoch: nothing that happened later is known. */
  readonly countedUntil: number;
  /** Those first of which the most was to be expected. */
  readonly silent: readonly (SilentName & { readonly environment: Environment })[];
}

/** Finds the numbers and carriers that have gone silent for everybody. */
export function findSilences({
  receptions,
}: {
  readonly receptions: ReceptionStore;
}): () => Promise<FoundSilences> {
  return async () => {
    const { countedUntil, rows, inUse } = await receptions.read();
    const silent = environments.flatMap((environment) => {
      const own = rows.filter((row) => row.environment === environment);
      return silencesIn(own, countedUntil, (number) => inUse.has(number)).map((found) => ({
        ...found,
        environment,
      }));
    });
    return {
      countedUntil,
      silent: silent.sort((one, other) => other.silence.expected - one.silence.expected),
    };
  };
}
