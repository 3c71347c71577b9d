import os from "node:os";
import { defineConfig } from "vitest/config";
import { LongestFirst } from "./test/harness/longest-first.ts";

export default defineConfig({
  test: {
    include: ["test/**/*.test.ts"],
    globalSetup: ["test/harness/global-setup.ts"],
    setupFiles: ["test/harness/setup.ts"],
    pool: "forks",
    // Every suite has a database of its own. A process for each would spend a third of the run on imports.
    isolate: false,
    // A suite waits, too: for a process to start, or for the database.
    maxWorkers: os.availableParallelism() + 6,
    // Those that run at once in one file wait: for the same timeout of the service, or for processes.
    maxConcurrency: 12,
    // Bounds on what hangs, and on nothing else: a machine that others use may take many times as long as a quiet one.
    testTimeout: 180_000,
    hookTimeout: 180_000,
    sequence: { sequencer: LongestFirst },
    expect: { poll: { timeout: 45_000 } },
  },
});
