import path from "node:path";
import { BaseSequencer, type TestSpecification } from "vitest/node";

/**
 * The slowest test files, slowest first: one that starts late runs on alone after all other workers are done. In a fresh clone
 * vitest knows only the files' sizes, which say little about their duration.
 */
const longest = [
  "window/browser",
  "storage/embedded-postgres",
  "ops/log",
  "deploy/cluster",
  "service/statistics",
  "security/hostile-connections",
  "service/settings",
  "cli/sms-stream",
  "service/overload",
  "faults/faults",
  "cli/verification-watch",
  "webhooks/configuration",
  "service/stopping",
  "storage/migrations",
  "docs/commands",
  "ops/metrics",
  "window/limits",
  "window/looks",
  "cli/usage",
  "webhooks/clock",
  "webhooks/fairness",
  "cli/demo",
  "webhooks/crash",
  "service/draining",
  "gateway/hostile-requests",
  "rpc/inbound-stream",
  "gateway/limits",
  "cli/unanswered",
  "service/races",
  "rpc/open-streams",
  "window/example",
  "service/shared-limits",
  "service/expiry",
  "security/injection",
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
