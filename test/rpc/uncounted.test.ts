/** Usage of calls that consist of more than one statement: a call that fails is not counted. */
import { type CallOptions, Code } from "@connectrpc/connect";
import { expect, test } from "vitest";
import { StatisticsService } from "../../src/gen/proto/phoneproof/v1/statistics_pb.ts";
import { VerificationService } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { startTestService } from "../harness/service.ts";
import { answerOf } from "./grpc-answer.ts";

const service = await startTestService({ ROLES: "api" });
const { liveKey } = await service.createProject({ usageLimit: 2n });
const verifications = service.client(VerificationService, liveKey);
const statistics = service.client(StatisticsService, liveKey);

const list = (options: CallOptions): Promise<unknown> => verifications.listVerifications({}, options);
const count = (options: CallOptions): Promise<unknown> => statistics.getStatistics({}, options);

test.for([
  { name: "a list of verifications", table: "verification", ask: list, calls: "1" },
  { name: "statistics", table: "statistics_progress", ask: count, calls: "2" },
])("$name: a failed call is not counted, and the next one that succeeds is", async ({
  table,
  ask,
  calls,
}) => {
  await service.db.query(`ALTER TABLE ${table} RENAME TO away`);
  const refused = await answerOf(ask);
  await service.db.query(`ALTER TABLE away RENAME TO ${table}`);
  expect(refused).toMatchObject({ code: "internal_error", status: Code.Internal });
  expect(refused.metadata.get("x-usage-calls")).toBeNull();
  const answered = await answerOf(ask);
  expect(answered.code).toBe("ok");
  expect(answered.metadata.get("x-usage-calls")).toBe(calls);
});

test.for([
  { name: "a list of verifications", ask: list },
  { name: "statistics", ask: count },
])("$name: a call beyond the usage limit is refused", async ({ ask }) => {
  expect(await answerOf(ask)).toMatchObject({ code: "usage_limit_exceeded", message: undefined });
});
