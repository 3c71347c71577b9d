import path from "node:path";
import { BaseSequencer, type TestSpecification } from "vitest/node";

/**
 * The slowest test files, slowest first: one that starts late runs on alone after all other workers are done. Two that mostly wait
 * are followed by one that computes: of the slowest, most wait, and the processor would be idle while they run together. In a fresh
 * clone vitest knows only the files' sizes, which say little about their duration.
 */
const longest = [
  "service/standby-wait",
  "service/paused-process",
  "security/hostile-connections",
  "service/shared-limits",
  "window/browser",
  "storage/embedded-kills",
  "ops/log",
  "service/statistics",
  "service/draining",
  "window/example",
  "ops/metrics",
  "window/updates",
  "cli/sms-stream",
  "storage/migrations",
  "service/overload",
  "webhooks/configuration",
  "cli/verification-watch",
  "rpc/open-streams",
  "service/matching",
  "rpc/watch-verification",
  "faults/faults",
  "service/stopping",
  "service/lost-connections",
  "gateway/reading-turns",
  "storage/database",
  "gateway/unfinished-requests",
  "storage/embedded-postgres",
  "webhooks/clock",
  "service/retention",
  "webhooks/crash",
  "service/growth",
  "service/credential-effect",
  "service/settings",
  "service/database-defaults",
  "cli/unanswered",
  "cli/usage",
  "window/limits",
  "webhooks/exchange",
  "webhooks/fairness",
  "webhooks/retries",
  "service/expiry",
  "rpc/example-clients",
  "storage/notices",
  "rpc/unreadable-calls",
  "storage/embedded-users",
  "security/secrets",
  "client/creation",
  "storage/embedded-refusals",
  "window/looks",
  "security/injection",
  "cli/output",
  "docs/commands",
  "gateway/large-bodies",
  "gateway/pipelining",
  "service/histories",
  "storage/server-log",
  "rpc/administration",
  "rpc/inbound-stream",
  "service/demo-project",
  "webhooks/delivery",
  "service/erasure",
  "service/races",
  "service/verification-history",
  "window/live",
  "tracing/tracing",
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
