import { ConnectError } from "@connectrpc/connect";
import { vi } from "vitest";
import { Environment, VerificationService } from "../../src/gen/proto/phoneproof/v1/verification_pb.ts";
import type { TestProject, TestService } from "../harness/service.ts";

/**
 * Creates a project on the first process and waits until the others know its numbers, because they may use cached
 * ones for up to a second. The calls for this are made in the test environment, and are not counted.
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
