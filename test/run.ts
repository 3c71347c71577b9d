/**
 * Runs the tests (arguments go to vitest: `npm test -- test/core -t expiry`) and ends with one line that says
 * how it went. A file that does not load, a skipped test and a run without tests are failures.
 */
import path from "node:path";
import { parseCLI, type Reporter, startVitest, type TestModule } from "vitest/node";

let passed = 0;
let failed = 0;

const { filter, options } = parseCLI(["vitest", "run", ...process.argv.slice(2)]);
// Choosing by name skips all others, and then says nothing about them.
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
  // A hook that fails leaves its tests skipped, or passed when it comes after them.
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
    reporters: ["default", counting],
  });
} catch (error) {
  console.error(error);
  failed += 1;
}
if (passed + failed === 0) failed = 1;
process.exitCode = failed > 0 ? 1 : 0;
// Written out whole before the end, into a pipe as well; and nothing that lingers may write after it.
process.stdout.write(`${passed} passed, ${failed} failed\n`, () => process.exit());
