import { readdir, readFile } from "node:fs/promises";
import path from "node:path";
import { expect, test } from "vitest";

const tests = path.join(import.meta.dirname, "..");

/** test/run.ts counts a skipped test as a failure, so a run would fail wherever the condition does not hold. */
test("what a machine cannot run is not defined there, instead of being skipped", async () => {
  const files = (await readdir(tests, { recursive: true })).filter((name) => name.endsWith(".test.ts"));
  const skipping = [];
  for (const name of files) {
    const text = await readFile(path.join(tests, name), "utf8");
    skipping.push(
      ...(text.match(/\b(test|it|describe)\.(runIf|skipIf|skip|todo)\b/g) ?? []).map(
        (call) => `${name}: ${call}`,
      ),
    );
  }
  expect(skipping).toEqual([]);
});
