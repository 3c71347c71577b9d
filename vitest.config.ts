import os from "node:os";
import { defineConfig } from "vitest/config";

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    globalSetup: ["test/harness/global-setup.ts"],
    pool: "forks",
    // Every suite has a database of its own. A process for each would spend a third of the run on imports.
    isolate: false,
    // Most of a suite's time is spent waiting, for a process to start or for the database.
    maxWorkers: os.availableParallelism() + 2,
    testTimeout: 30_000,
    hookTimeout: 60_000,
  },
});
