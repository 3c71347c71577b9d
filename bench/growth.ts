/** Measures each operation on tables from ten thousand rows up to a thousand times as many. */

import { type OperationName, openArms, type Subjects } from "./operations.ts";
import { addPast } from "./past-verifications.ts";
import { measureInTurn, ratioOf } from "./rounds.ts";

export const grownOperations: readonly OperationName[] = ["create", "replay", "read", "cancel", "inbound"];
/** How many times slower than at the fewest rows an operation may be. */
const growthGoal = 1.2;

export interface GrowthFigures {
  readonly rows: number;
  readonly operation: OperationName;
  readonly perSecond: number;
  readonly p99Ms: number;
  /**
   * Relative to the bare server measured in turn with it, which does not depend on the rows: other load of the machine affects
   * both alike.
   */
  readonly ratioToBare: number;
}

export async function measureGrowth(
  subjects: Subjects,
  options: { readonly rounds: number; readonly seconds: number; readonly sizes: readonly number[] },
  reportProgress: (what: string) => void,
): Promise<GrowthFigures[]> {
  const { database, project } = subjects.service;
  const figures: GrowthFigures[] = [];
  const total = Math.max(...options.sizes);
  let rows = 0;
  for (const size of options.sizes) {
    reportProgress(`${size.toLocaleString("en")} rows`);
    await addPast(database, project, { from: rows, until: size, total });
    rows = size;
    for (const operation of grownOperations) {
      reportProgress(`${operation} at ${size.toLocaleString("en")} rows`);
      const arms = (await openArms[operation](subjects)).filter(({ name }) => name !== "database");
      const measured = await measureInTurn(arms, options);
      for (const arm of arms) arm.close();
      const service = measured.find(({ arm }) => arm === "service")?.medians;
      if (service === undefined) throw new Error(`${operation} was not measured`);
      const { perSecond, p99Ms } = service;
      const ratioToBare = ratioOf(measured, "service", "bare") ?? Number.NaN;
      figures.push({ rows: size, operation, perSecond, p99Ms, ratioToBare });
    }
  }
  return figures;
}

/** One line per operation: how many times slower it is than on the fewest rows, by the ratio to the bare server. */
export function growthTable(figures: readonly GrowthFigures[]): string {
  const sizes = [...new Set(figures.map(({ rows }) => rows))];
  const [fewest = 0] = sizes;
  const at = (operation: OperationName, rows: number) =>
    figures.find((candidate) => candidate.operation === operation && candidate.rows === rows);
  const cells = (name: string, values: readonly string[]) =>
    name.padEnd(10) + values.map((value) => value.padStart(20)).join("");
  const lines = grownOperations.map((operation) => {
    const base = at(operation, fewest)?.ratioToBare ?? Number.NaN;
    const values = sizes.map((rows) => {
      const figure = at(operation, rows);
      if (figure === undefined) return "–";
      return `${Math.round(figure.perSecond).toLocaleString("en")} (${(base / figure.ratioToBare).toFixed(2)})`;
    });
    return cells(operation, values);
  });
  return [
    `Per second by number of rows (how many times slower than on ${fewest.toLocaleString("en")}; at most ${growthGoal})`,
    cells(
      "",
      sizes.map((rows) => rows.toLocaleString("en")),
    ),
    ...lines,
  ].join("\n");
}
