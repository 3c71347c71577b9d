import { Gauge, type Registry } from "prom-client";

/** A destination number or carrier that nothing is verified by any more. */
export interface SilentLabels {
  readonly environment: string;
  readonly kind: "number" | "carrier";
  readonly name: string;
}

/**
 * What has gone silent against its own past, on workers. A series is there while its number or carrier is silent: no more
 * of them than there are numbers and carriers. The time says how far that judgement reaches.
 */
export function createSilenceMetrics(metrics: Registry) {
  const silent = new Gauge({
    name: "phoneproof_silent",
    help: "1 while nothing is verified by SMS to this number, or from this carrier, though its own past would have it.",
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
      for (const { environment, kind, name } of found.silent) silent.set({ environment, kind, name }, 1);
    },
  };
}
