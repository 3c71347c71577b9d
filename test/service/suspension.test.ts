/** What suspending a project does and does not do: docs/operations.md. */

import { expect, test } from "vitest";
import { ProjectService } from "../../src/gen/proto/phoneproof/v1/project_pb.ts";
import {
  Environment,
  VerificationService,
  VerificationStatus,
} from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import { merchant } from "../gateway/merchant.ts";
import { startTestService } from "../harness/service.ts";
import { answerOf } from "../rpc/grpc-answer.ts";

const service = await startTestService();

test("a suspended project's keys and creations are refused; pending verifications, their windows and tokens keep working", async () => {
  const { projectId, liveKey } = await service.createProject();
  const shop = merchant(service.httpUrl, liveKey);
  const [sent, cancelled] = [(await shop.create()).body, (await shop.create()).body];
  const token = service.client(VerificationService, await service.createToken({ scope: "write" }));
  const creation = { projectId, environment: Environment.LIVE, idempotencyKey: "before-it-is-suspended" };
  await token.createVerification(creation);
  await service.client(ProjectService).suspendProject({ projectId });
  expect(
    await answerOf((options) =>
      token.createVerification({ ...creation, idempotencyKey: "while-suspended" }, options),
    ),
  ).toMatchObject({ code: "project_suspended" });
  await expect.poll(async () => (await shop.create()).body.error?.code).toBe("project_suspended");
  expect((await shop.read(sent.id)).status).toBe(403);

  const { pathname } = new URL(sent.verification_url);
  expect((await fetch(`${service.httpUrl}${pathname}`)).status).toBe(200);
  await service.sms({ to: sent.destination, from: "01012345678", text: sent.sms_text });
  const read = await token.getVerification({ verificationId: sent.id });
  expect(read.verification?.status).toBe(VerificationStatus.VERIFIED);
  const { verification } = await token.cancelVerification({ verificationId: cancelled.id });
  expect(verification?.status).toBe(VerificationStatus.CANCELLED);
  const { verifications } = await token.listVerifications({ projectId });
  expect(verifications).toHaveLength(3);

  await service.client(ProjectService).resumeProject({ projectId });
  await expect.poll(async () => (await shop.read(sent.id)).status).toBe(200);
});
