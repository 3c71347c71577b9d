import { Failure } from "../failures.ts";
import { chargedProject, lookupOf, requireScope, verificationNotFound } from "./access.ts";
import type { Call } from "./call.ts";
import type { VerificationRequest } from "./get-verification.ts";
import type { Verification, Verifications } from "./verification.ts";

export type CancelVerification = (request: VerificationRequest, call: Call) => Promise<Verification>;

/**
 * Cancels a pending verification; one already cancelled is returned unchanged.
 *
 * Invariant: a terminal status never changes. The WHERE clause of the statement enforces this, so a race with the matching SMS
 * is decided in the database, never here.
 */
export function cancelVerification({
  verifications,
}: {
  readonly verifications: Verifications;
}): CancelVerification {
  return async (request, call) => {
    requireScope(call.caller, "write");
    const lookup = lookupOf(call, request);
    const { usage, value } = await verifications.cancel(lookup, chargedProject(call.caller));
    call.usage = usage;
    if (value === null) throw verificationNotFound(call.caller, request);
    if (value.status !== "cancelled") throw new Failure("verification_not_cancellable");
    return value;
  };
}
