import { chargedProject, lookupOf, type NamedScope, requireScope, verificationNotFound } from "./access.ts";
import type { Call } from "./call.ts";
import type { Verification, Verifications } from "./verification.ts";

/** A request about one verification; the id is `vrf_…` as sent. */
export interface VerificationRequest extends NamedScope {
  readonly verificationId: string;
}

export type GetVerification = (request: VerificationRequest, call: Call) => Promise<Verification>;

/** Returns the verification's current state. One outside the caller's bounds is answered as not found, in the same time. */
export function getVerification({
  verifications,
}: {
  readonly verifications: Verifications;
}): GetVerification {
  return async (request, call) => {
    requireScope(call.caller, "read");
    const lookup = lookupOf(call, request);
    const { usage, value } = await verifications.find(lookup, chargedProject(call.caller));
    call.usage = usage;
    if (value === null) throw verificationNotFound(call.caller, request);
    return value;
  };
}
