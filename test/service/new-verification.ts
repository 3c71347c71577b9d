/** Creations for tests that go to the storage directly. */

import { createHash } from "node:crypto";
import { decodeId, newId } from "../../src/core/ids.ts";
import type { NewVerification } from "../../src/core/verification.ts";

/** A live creation whose unstated fields are unique where they must be. */
export function newVerification(
  project: { projectId: string; liveNumber: string },
  request: Partial<NewVerification>,
): NewVerification {
  const id = newId();
  const digest = createHash("sha256").update(id).digest("hex");
  return {
    id,
    projectId: decodeId("prj_", project.projectId) ?? "",
    environment: "live",
    idempotencyKey: id,
    requestDigest: digest,
    mode: "discover",
    expectedPhone: null,
    clientReference: "",
    state: "",
    parentOrigin: null,
    returnUrl: null,
    validitySeconds: 600,
    destination: project.liveNumber,
    code: id,
    codeFormat: "numeric",
    smsText: id,
    verificationUrl: `https://verify.example.com/v/${id}`,
    windowDigest: digest,
    ...request,
  };
}
