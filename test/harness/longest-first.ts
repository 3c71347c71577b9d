import path from "node:path";
import { BaseSequencer, type TestSpecification } from "vitest/node";

/**
 * The slowest test files, slowest first: one that starts late runs on alone after all other workers are done. Each that mostly waits
 * is followed by one that computes: of the slowest, most wait, and the processor would be idle while they run together. In a fresh
 * clone vitest knows only the files' sizes, which say little about their duration.
 */
const longest = [
  "service/standby-wait",
  "faults/faults",
  "service/paused-process",
  "gateway/reading-turns",
  "service/shared-limits",
  "security/hostile-connections",
  "window/browser",
  "rpc/open-streams",
  "ops/log",
  "service/overload",
  "service/statistics",
  "service/draining",
  "window/example",
  "storage/embedded-kills",
  "ops/metrics",
  "docs/commands",
  "cli/sms-stream",
  "service/settings",
  "storage/migrations",
  "window/updates",
  "webhooks/configuration",
  "gateway/large-bodies",
  "cli/verification-watch",
  "storage/embedded-refusals",
  "service/matching",
  "storage/embedded-users",
  "rpc/watch-verification",
  "rpc/inbound-stream",
  "service/stopping",
  "rpc/example-clients",
  "service/lost-connections",
  "webhooks/fairness",
  "storage/database",
  "webhooks/crash",
  "gateway/unfinished-requests",
  "storage/embedded-postgres",
  "webhooks/clock",
  "security/injection",
  "service/retention",
  "cli/usage",
  "service/growth",
  "service/demo-project",
  "service/credential-effect",
  "service/histories",
  "service/database-defaults",
  "window/looks",
  "cli/unanswered",
  "cli/output",
  "window/limits",
  "storage/server-log",
  "webhooks/exchange",
  "gateway/pipelining",
  "webhooks/retries",
  "rpc/administration",
  "service/expiry",
  "tracing/tracing",
  "storage/notices",
  "window/live",
  "rpc/unreadable-calls",
  "service/races",
  "security/secrets",
  "webhooks/delivery",
  "client/creation",
  "service/verification-history",
  "service/erasure",
  "webhooks/histories",
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
