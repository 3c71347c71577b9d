import path from "node:path";
import { BaseSequencer, type TestSpecification } from "vitest/node";

/**
 * The slowest test files, slowest first: one that starts late runs on alone after all other workers are done. In a fresh clone
 * vitest knows only the files' sizes, which say little about their duration.
 */
const longest = [
  "storage/embedded-postgres",
  "deploy/cluster",
  "ops/log",
  "cli/demo",
  "webhooks/fairness",
  "cli/sms-stream",
  "service/statistics",
  "rpc/open-streams",
  "window/looks",
  "faults/faults",
  "security/injection",
  "security/hostile-connections",
  "webhooks/crash",
  "window/browser",
  "cli/usage",
];

const rankOf = ({ moduleId }: TestSpecification) => {
  const name = path.relative(path.join(import.meta.dirname, ".."), moduleId).replace(/\.test\.ts$/, "");
  const rank = longest.indexOf(name);
  return rank === -1 ? longest.length : rank;
};

export class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    return (await super.sort(files)).toSorted((one, other) => rankOf(one) - rankOf(other));
  }
}
