import { expect, test } from "vitest";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import { Environment } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { startCuttableProxy } from "../harness/cuttable-proxy.ts";
import { transportTo } from "../harness/grpc-transport.ts";
import { startTestService } from "../harness/service.ts";
import { callOnce, rpcs } from "./every-rpc.ts";
import { refusalOf } from "./grpc-answer.ts";

const service = await startTestService();
const proxy = await startCuttableProxy(service.databaseUrl);
const distant = await service.startAnother({ DATABASE_URL: proxy.databaseUrl });

const { projectId } = await service.createProject();
const place = { projectId, environment: Environment.LIVE };
const verificationId = "vrf_01jd0000000000000000000000";
const idempotencyKey = "without-a-database";
const message = { messageId: "1", from: "01012345678", to: "0212345678", text: "12345678" };
const webhook = { ...place, url: "https://shop.example/hooks" };

/** A request to each RPC that makes it query the database. */
const requests: Record<string, Record<string, unknown>> = {
  "ApiKeyService/CreateApiKey": place,
  "ApiKeyService/ListApiKeys": place,
  "ApiKeyService/RotateApiKey": { apiKeyId: "key_01jd0000000000000000000000" },
  "ApiKeyService/RevokeApiKey": { apiKeyId: "key_01jd0000000000000000000000" },
  "AuditService/ListAuditEntries": {},
  "DestinationNumberService/AddDestinationNumber": { ...place, number: "0212345678" },
  "DestinationNumberService/ListDestinationNumbers": {},
  "DestinationNumberService/RemoveDestinationNumber": { number: "0212345678" },
  "ErasureService/EraseVerification": { verificationId },
  "ErasureService/ErasePhone": { phone: "01012345678" },
  "InboundMessageService/StreamInboundMessages": { messages: [message] },
  "ProjectService/CreateProject": { name: "Shop" },
  "ProjectService/GetProject": { projectId },
  "ProjectService/ListProjects": {},
  "ProjectService/ListUsage": { projectId },
  "ProjectService/UpdateProject": { projectId, name: "Shop" },
  "ProjectService/SuspendProject": { projectId },
  "ProjectService/ResumeProject": { projectId },
  "ServiceTokenService/CreateServiceToken": { scope: 1 },
  "ServiceTokenService/ListServiceTokens": {},
  "ServiceTokenService/RevokeServiceToken": { serviceTokenId: "tok_01jd0000000000000000000000" },
  "StatisticsService/GetStatistics": { projectId },
  "VerificationService/CreateVerification": { ...place, idempotencyKey },
  "VerificationService/GetVerification": { verificationId },
  "VerificationService/CancelVerification": { verificationId },
  "VerificationService/ListVerifications": place,
  "VerificationService/WatchVerification": { verificationId },
  "VerificationHistoryService/GetVerificationHistory": { verificationId },
  "WebhookService/SetWebhook": webhook,
  "WebhookService/GetWebhook": place,
  "WebhookService/RotateWebhookSecret": place,
  "WebhookService/RemoveWebhook": place,
  "WebhookService/DisableWebhook": place,
  "WebhookService/ListWebhookDeliveries": place,
  "WebhookService/ResendWebhookEvent": { eventId: "evt_01jd0000000000000000000000" },
  "WebhookService/SendTestWebhook": place,
};

const ours = rpcs.flatMap(({ name, method }) => {
  const [, short] = /^phoneproof\.v1\.(.+)$/.exec(name) ?? [];
  return short === undefined ? [] : [{ name: short, method }];
});

test("the table of requests lists every RPC", () => {
  expect(ours.map(({ name }) => name).sort()).toEqual(Object.keys(requests).sort());
});

test("every RPC answers service_unavailable while the database cannot be reached", async () => {
  const transport = transportTo(distant.grpcAddress, `Bearer ${service.adminToken}`);
  // Otherwise an administrative call would fail before it gets as far as its own statement.
  await distant.client(ProjectService).listProjects({});
  proxy.cut();
  const codes: Record<string, string> = {};
  for (const { name, method } of ours) {
    codes[name] = await callOnce(transport, method, requests[name] ?? {}).then(
      () => "ok",
      (error) => refusalOf(error).code,
    );
  }
  expect(codes).toEqual(Object.fromEntries(ours.map(({ name }) => [name, "service_unavailable"])));
  proxy.restore();
});
