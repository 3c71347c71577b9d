import { Gauge, type Registry } from "prom-client";

/** A destination number or carrier that nothing is verified by any more. */
export interface SilentLabels {
  readonly environment: string;
  readonly kind: "number" | "carrier";
  readonly name: string;
}

/** Of each environment. Where more are silent at once it is not they that are at fault, and no one of them says more. */
const namedNumbers = 20;
/** Of those that are not named. No number is called that. */
const others = "others";

/**
 * What has gone silent against its own past, on workers. A series is there while its number or carrier is silent, of
 * numbers a few of each environment: who runs the service may have any number of them. The time says how far that
 * judgement reaches.
 */
export function createSilenceMetrics(metrics: Registry) {
  const silent = new Gauge({
    name: "phoneproof_silent",
    help: "1 while nothing is verified by SMS to this number, or from this carrier, though its own past would have it; others: how many more numbers.",
    labelNames: ["environment", "kind", "name"],
    registers: [metrics],
  });
  const countedUntil = new Gauge({
    name: "phoneproof_statistics_counted_until_seconds",
    help: "Unix time before which everything is counted into the statistics.",
    registers: [metrics],
  });
  return {
    show(found: { readonly countedUntil: number; readonly silent: readonly SilentLabels[] }): void {
      countedUntil.set(found.countedUntil / 1000);
      silent.reset();
      const named = new Map<string, number>();
      for (const { environment, kind, name } of found.silent) {
        const before = named.get(environment) ?? 0;
        if (kind === "number") named.set(environment, before + 1);
        if (kind === "number" && before >= namedNumbers) silent.inc({ environment, kind, name: others });
        else silent.set({ environment, kind, name }, 1);
      }
    },
  };
}
