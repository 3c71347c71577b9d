import { ConnectError } from "@connectrpc/connect";
import { vi } from "vitest";
import { Environment, VerificationService } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import type { TestProject, TestService } from "../harness/service.ts";

/**
 * Makes a project on the first process and waits until the others know its numbers: for up to a second they may
 * believe what they have read before. What it takes to see that happens in the test environment, and is not counted.
 */
export async function knownProject(
  processes: readonly [TestService, ...TestService[]],
  settings: Parameters<TestService["createProject"]>[0] = {},
): Promise<TestProject> {
  const [maker, ...others] = processes;
  const project = await maker.createProject(settings);
  await Promise.all(
    others.map((other) => vi.waitUntil(() => knows(other, project), { interval: 5, timeout: 45_000 })),
  );
  return project;
}

async function knows(process: TestService, { projectId }: TestProject): Promise<boolean> {
  const request = { projectId, environment: Environment.TEST, idempotencyKey: "is-it-known" };
  try {
    await process.client(VerificationService).createVerification(request);
    return true;
  } catch (error) {
    if (error instanceof ConnectError) return false;
    throw error;
  }
}
