import path from "node:path";
import { BaseSequencer, type TestSpecification } from "vitest/node";

/**
 * The slowest test files, slowest first: one that starts late runs on alone after all other workers are done. In a fresh clone
 * vitest knows only the files' sizes, which say little about their duration.
 */
const longest = [
  "storage/embedded-postgres",
  "deploy/cluster",
  "service/statistics",
  "security/hostile-connections",
  "window/browser",
  "ops/log",
  "service/settings",
  "cli/sms-stream",
  "service/overload",
  "faults/faults",
  "cli/verification-watch",
  "service/stopping",
  "window/looks",
  "webhooks/configuration",
  "webhooks/crash",
  "cli/demo",
  "webhooks/fairness",
  "window/limits",
  "ops/metrics",
  "security/injection",
  "service/draining",
  "rpc/open-streams",
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
