import { create, toBinary } from "@bufbuild/protobuf";
import { Code } from "@connectrpc/connect";
import { expect, test } from "vitest";
import { StreamInboundMessagesRequestSchema } from "../../src/gen/proto/phoneproof/v1/inbound_message_pb.ts";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import {
  ServiceTokenScope,
  ServiceTokenService,
} from "../../src/gen/proto/phoneproof/v1/service_token_pb.ts";
import { VerificationService } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { startTestService } from "../harness/service.ts";
import { connectRaw } from "./raw-grpc.ts";

const service = await startTestService();

test("a method that is not there is UNIMPLEMENTED", async () => {
  const call = connectRaw(service.grpcAddress).call("phoneproof.v1.VerificationService/NoSuchMethod");
  call.halfClose();
  expect(await call.status).toEqual({ code: 12, message: "no such method" });
});

test("a token that is revoked, and a project that is suspended, end what is open within a second", async () => {
  const tokens = service.client(ServiceTokenService);
  const { secret, serviceToken } = await tokens.createServiceToken({
    scope: ServiceTokenScope.INGEST,
    source: "revoked",
  });
  const { projectId, liveKey, liveNumber } = await service.createProject();
  const held = connectRaw(service.grpcAddress);
  const stream = held.call("phoneproof.v1.InboundMessageService/StreamInboundMessages", {
    authorization: `Bearer ${secret}`,
  });
  const message = (messageId: string) =>
    toBinary(
      StreamInboundMessagesRequestSchema,
      create(StreamInboundMessagesRequestSchema, {
        messages: [{ messageId, from: "01087651111", to: liveNumber, text: "hello" }],
      }),
    );
  await stream.send(message("before the revocation"));
  expect(await stream.next()).toBeDefined();
  await tokens.revokeServiceToken({ serviceTokenId: serviceToken?.id ?? "" });
  await stream.send(message("after the revocation"));
  expect(await stream.next()).toBeUndefined();
  expect((await stream.status).code).toBe(Code.Unauthenticated);

  const verifications = service.client(VerificationService, liveKey);
  const { verification, destination, smsText } = await verifications.createVerification({
    idempotencyKey: "revoked-1",
  });
  const watching = verifications
    .watchVerification({ verificationId: verification?.id ?? "" })
    [Symbol.asyncIterator]();
  expect((await watching.next()).done).toBe(false);
  await service.client(ProjectService).suspendProject({ projectId });
  await service.sms({ to: destination, text: smsText });
  await expect(watching.next()).rejects.toMatchObject({ code: Code.PermissionDenied });
});
