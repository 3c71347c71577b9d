import path from "node:path";
import { BaseSequencer, type TestSpecification } from "vitest/node";

/**
 * The slowest test files, slowest first: one that starts late runs on alone after all other workers are done. In a fresh clone
 * vitest knows only the files' sizes, which say little about their duration.
 */
const longest = [
  "storage/embedded-kills",
  "storage/embedded-users",
  "storage/embedded-postgres",
  "storage/embedded-refusals",
  "window/browser",
  "service/paused-process",
  "service/standby-wait",
  "ops/log",
  "service/statistics",
  "window/updates",
  "cli/sms-stream",
  "security/hostile-connections",
  "service/draining",
  "cli/verification-watch",
  "service/stopping",
  "deploy/cluster",
  "service/overload",
  "webhooks/configuration",
  "rpc/open-streams",
  "ops/metrics",
  "window/limits",
  "faults/faults",
  "gateway/unfinished-requests",
  "service/settings",
  "webhooks/crash",
  "webhooks/fairness",
  "storage/migrations",
  "rpc/example-clients",
  "service/shared-limits",
  "service/erasure",
  "service/verification-erasure",
  "service/concurrent-erasure",
  "service/histories",
  "service/matching",
  "cli/usage",
  "cli/demo",
  "docs/snippets",
  "window/example",
  "rpc/inbound-stream",
  "security/injection",
  "gateway/large-bodies",
  "cli/unanswered",
  "webhooks/clock",
  "gateway/limits",
  "cli/answers",
  "cli/verification-answers",
  "cli/output",
  "docs/commands",
  "service/credential-effect",
  "service/growth",
  "service/retention",
  "window/looks",
  "service/database-defaults",
  "service/expiry",
  "webhooks/histories",
  "webhooks/retries",
  "webhooks/exchange",
  "webhooks/delivery",
  "window/live",
  "rpc/unreadable-calls",
  "service/races",
  "service/creation-races",
  "rpc/list-bounds",
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
