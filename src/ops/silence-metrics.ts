import { Gauge, type Registry } from "prom-client";

/** A destination number or carrier through which nothing is verified any more. */
export interface SilentLabels {
  readonly environment: string;
  readonly kind: "number" | "carrier";
  readonly name: string;
}

/**
 * Numbers named per environment. If more are silent at once, the numbers are not the cause, and naming one more says nothing
 * new.
 */
const namedNumbers = 20;
/** The label for all that are not named. No number is called that. */
const others = "others";

/**
 * What has gone silent compared with its own past, on workers. A series exists while its number or carrier is silent, and only
 * for a few numbers per environment: an installation may have any number of them. `countedUntil` is the time up to which this
 * was judged.
 */
export function createSilenceMetrics(metrics: Registry) {
  const silent = new Gauge({
    name: "phoneproof_silent",
    help: "1 while no SMS to this number, or from this carrier, verifies anything although its own past predicts it; others: how many more numbers, up to about 1,000.",
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
