/** `npm run test:faults`: applies faults chosen by the seed until the time is over. */

import { parseArgs } from "node:util";
import { type Fault, faultNamed, faults } from "./faults.ts";
import { newSeed } from "./random.ts";
import { applyAll } from "./rounds.ts";

const usage = `npm run test:faults -- [--seed N] [--duration 10m] [--only ${faults.map(({ name }) => name).join(",")}]`;

/** The maximum number of faults in one world before a new one is started. */
const faultsAWorld = 6;

interface Options {
  readonly seed: number;
  readonly durationMs: number;
  readonly only: readonly Fault[];
}

function parseOptions(): Options {
  const { values } = parseArgs({
    options: {
      seed: { type: "string", default: String(newSeed()) },
      duration: { type: "string", default: "4m" },
      only: { type: "string", default: faults.map(({ name }) => name).join(",") },
    },
  });
  const seed = Number(values.seed);
  if (!Number.isInteger(seed) || seed < 0 || seed >= 2 ** 32)
    throw new Error("--seed must be a whole number under 2^32");
  const [, amount, unit] = /^(\d+)(s|m|h)$/.exec(values.duration) ?? [];
  if (amount === undefined) throw new Error("--duration must be a number of s, m or h, such as 10m");
  const durationMs = Number(amount) * { s: 1_000, m: 60_000, h: 3_600_000 }[unit as "s" | "m" | "h"];
  const only = new Set(values.only.split(",").map(faultNamed));
  // In the order of `faults`, so that a seed means the same in whatever order they are listed.
  return { seed, durationMs, only: faults.filter((fault) => only.has(fault)) };
}

async function run({ seed, durationMs, only }: Options): Promise<{ passed: number; failed: number }> {
  const worlds = worldsOf(only);
  const deadline = performance.now() + durationMs;
  let passed = 0;
  let failed = 0;
  for (let world = 0; world === 0 || performance.now() < deadline; world++) {
    const worldSeed = (seed + world) % 2 ** 32;
    const inIt = worlds[world % worlds.length] ?? [];
    const names = inIt.map(({ name }) => name).join(",");
    console.log(`world ${world + 1}, seed ${worldSeed}`);
    const applying = applyAll({
      seed: worldSeed,
      faults: inIt,
      inTime: true,
      onApplied({ fault, recoveredMs, answered, refused, lost, violations: wrong }) {
        if (wrong.length === 0) passed += 1;
        const word = wrong.length === 0 ? "passed" : "FAILED";
        const calls = `${answered} calls answered, ${refused} of them 503, ${lost} lost`;
        console.log(`  ${word} ${fault}: recovered after ${recoveredMs} ms; ${calls}`);
      },
    });
    const violations = await applying.catch((error: Error) => [error.stack ?? error.message]);
    if (violations.length === 0) continue;
    failed += 1;
    for (const violation of violations.slice(0, 20)) console.error(`  ${violation}`);
    console.error(`  to repeat: npm run test:faults -- --seed ${worldSeed} --duration 1s --only ${names}`);
  }
  return { passed, failed };
}

/** Groups the faults that can share a world. */
function worldsOf(chosen: readonly Fault[]): Fault[][] {
  const alike = Map.groupBy(chosen, ({ processes, setting }) => `${processes} ${setting}`);
  return [...alike.values()].flatMap((all) => {
    const worlds = Math.ceil(all.length / faultsAWorld);
    return Array.from({ length: worlds }, (_, world) => all.filter((_, index) => index % worlds === world));
  });
}

let options: Options | undefined;
try {
  options = parseOptions();
} catch (error) {
  console.error(`${(error as Error).message}\n${usage}`);
}
// The exit handlers that end child processes only run on a regular exit.
for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, () => process.exit(1));
const outcome = options === undefined ? { passed: 0, failed: 1 } : await run(options);
process.exitCode = outcome.failed > 0 ? 1 : 0;
process.stdout.write(`${outcome.passed} passed, ${outcome.failed} failed\n`, () => process.exit());
