/** Usage of calls that consist of more than one statement: a call that fails is not counted. */
import { type CallOptions, Code } from "@connectrpc/connect";
import { expect, test } from "vitest";
import { StatisticsService } from "../../src/gen/proto/phoneproof/v1/statistics_pb.ts";
import { VerificationService } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { startTestService } from "../harness/service.ts";
import { answerOf } from "./grpc-answer.ts";

const service = await startTestService({ ROLES: "api" });

const list = (key: string) => (options: CallOptions) =>
  service.client(VerificationService, key).listVerifications({}, options);
const count = (key: string) => (options: CallOptions) =>
  service.client(StatisticsService, key).getStatistics({}, options);

test.for([
  { name: "a list of verifications", table: "verification", askWith: list },
  { name: "statistics", table: "statistics_progress", askWith: count },
])("$name: a failed call is not counted, the next one that succeeds is, and one beyond the limit is refused", async ({
  table,
  askWith,
}) => {
  const { liveKey } = await service.createProject({ usageLimit: 1n });
  const ask: (options: CallOptions) => Promise<unknown> = askWith(liveKey);
  await service.db.query(`ALTER TABLE ${table} RENAME TO away`);
  const refused = await answerOf(ask);
  await service.db.query(`ALTER TABLE away RENAME TO ${table}`);
  expect(refused).toMatchObject({ code: "internal_error", status: Code.Internal });
  expect(refused.metadata.get("x-usage-calls")).toBeNull();
  const answered = await answerOf(ask);
  expect(answered.code).toBe("ok");
  expect(answered.metadata.get("x-usage-calls")).toBe("1");
  expect(await answerOf(ask)).toMatchObject({ code: "usage_limit_exceeded", message: undefined });
});
