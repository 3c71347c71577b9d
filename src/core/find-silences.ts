import { type Environment, environments } from "./project.ts";
import { type ReceptionRow, type SilentName, silencesIn } from "./silence.ts";

/**
 * Recent receptions per number and carrier, summed over all projects. Numbers that cannot be silent are summed as one without a
 * name, and so are those beyond a thousand that may be.
 */
export interface ReceptionStore {
  read(): Promise<{
    readonly countedUntil: number;
    readonly rows: readonly (ReceptionRow & { readonly environment: Environment })[];
    /** Of the named numbers those that accept new verifications. */
    readonly inUse: ReadonlySet<string>;
  }>;
}

export interface FoundSilences {
  /** Milliseconds since the epoch; nothing that happened later has been counted yet. */
  readonly countedUntil: number;
  /** Highest expected count first. */
  readonly silent: readonly (SilentName & { readonly environment: Environment })[];
}

/** Finds the numbers and carriers that have received nothing, in any project, for longer than chance explains. */
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
