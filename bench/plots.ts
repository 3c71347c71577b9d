/** Which figures are plotted. */

import { type GrowthFigures, grownOperations } from "./growth.ts";
import type { Plot } from "./plot.ts";
import type { Report } from "./report.ts";

export function arrivalPlots({ operations }: Report): Plot[] {
  const measured = operations.filter(({ arrivals }) => arrivals.length > 0);
  const linesOf = (percentile: "p50Ms" | "p99Ms") =>
    measured.map(({ operation, arrivals }) => ({
      name: operation,
      points: arrivals.map((figures) => [Math.round(figures.perSecond), figures[percentile]] as const),
    }));
  const x = { name: "arrivals per second", logarithmic: false };
  return [
    { title: "Half are answered within (ms)", x, lines: linesOf("p50Ms") },
    { title: "99 of 100 are answered within (ms)", x, lines: linesOf("p99Ms") },
  ];
}

export function growthPlots(figures: readonly GrowthFigures[]): Plot[] {
  const linesOf = (value: "perSecond" | "p99Ms") =>
    grownOperations.map((operation) => ({
      name: operation,
      points: figures
        .filter((candidate) => candidate.operation === operation)
        .map((candidate) => [candidate.rows, candidate[value]] as const),
    }));
  const x = { name: "rows", logarithmic: true };
  return [
    { title: "Answers per second", x, lines: linesOf("perSecond") },
    { title: "99 of 100 are answered within (ms)", x, lines: linesOf("p99Ms") },
  ];
}
