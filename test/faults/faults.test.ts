import { expect, test } from "vitest";
import { faultNamed } from "./faults.ts";
import { newSeed } from "./random.ts";
import { applyAll } from "./rounds.ts";

/**
 * The most informative faults that take only a few seconds each. `npm run test:faults` applies all of them, for as long as
 * requested.
 */
const names = ["kill-service", "kill-postgres", "cut-commit", "read-only", "no-connections"];

test(
  "after each fault under load, the database matches the answers that clients received",
  { timeout: 180_000 },
  async () => {
    const seed = newSeed();
    console.log(`npm run test:faults -- --seed ${seed} --duration 1s --only ${names}`);
    const applied: string[] = [];
    const violations = await applyAll({
      seed,
      faults: names.map(faultNamed),
      inTime: false,
      onApplied: ({ fault }) => applied.push(fault),
    });
    expect(violations).toEqual([]);
    expect(applied.sort()).toEqual([...names].sort());
  },
);
