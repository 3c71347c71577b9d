/**
 * Runs the tests (arguments are passed to vitest: `npm test -- test/core -t expiry`). The last line of output gives the
 * numbers of passed and failed tests. A file that does not load, a skipped test and a run without tests are failures.
 */
import path from "node:path";
import { parseCLI, type Reporter, startVitest, type TestModule } from "vitest/node";

let passed = 0;
let failed = 0;

const { filter, options: given } = parseCLI(["vitest", "run", ...process.argv.slice(2)]);
// The option's name on the command line, which vitest prefers to `reporters`.
const { reporter: shown = ["default"], ...options } = given as typeof given & { reporter?: string[] };
// Tests that are skipped because of -t are not failures.
const chosenByName = options.testNamePattern !== undefined;

const counting: Reporter = {
  onTestRunEnd(modules, unhandledErrors) {
    for (const module of modules) count(module);
    failed += unhandledErrors.length;
  },
};

function count(module: TestModule): void {
  const beforeErrors = failed;
  for (const test of module.children.allTests()) {
    const { state } = test.result();
    if (state === "passed") passed += 1;
    else if (state !== "skipped" || !chosenByName) failed += 1;
  }
  // If a hook fails, its tests are skipped, or passed if it ran after them.
  for (const suite of module.children.allSuites()) failed += suite.errors().length;
  failed += module.errors().length;
  if (failed > beforeErrors && module.ok()) {
    console.error(`${path.relative(process.cwd(), module.moduleId)}: skipped tests count as failures`);
  }
}

try {
  await startVitest(filter, {
    root: path.join(import.meta.dirname, ".."),
    ...options,
    run: true,
    watch: false,
    allowOnly: false,
    reporters: [...shown, counting],
  });
} catch (error) {
  console.error(error);
  failed += 1;
}
if (passed + failed === 0) failed = 1;
process.exitCode = failed > 0 ? 1 : 0;
// Exits only once the line has been written, into a pipe as well, and before anything left over can write after it.
process.stdout.write(`${passed} passed, ${failed} failed\n`, () => process.exit());
