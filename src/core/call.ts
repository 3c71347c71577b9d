import type { FieldViolation } from "../failures.ts";
import { decodeId } from "./ids.ts";
import type { Caller } from "./project.ts";
import type { UsageCount } from "./usage.ts";

/**
 * One authenticated call on its way through the core, over REST or gRPC.
 *
 * Invariant: `usage` is set at most once, by the code that charged the call. The gateway or gRPC server reports it if
 * set; admission charges a failed call only if it is not.
 */
export interface Call {
  /** `req_…` */
  readonly requestId: string;
  /** The client's IP address. */
  readonly address: string;
  /** The caller; looked up again for each message of a stream, so that a revocation takes effect on open streams. */
  caller: Caller;
  usage: UsageCount | undefined;
  /** The verification that the call names or has created, `vrf_…`, for the log; undefined if none is named correctly. */
  verificationId: string | undefined;
  /** The project that the call names, `prj_…`, for the log; undefined if none is named correctly. A merchant's key names its own. */
  projectId: string | undefined;
  /** What the gateway or gRPC server found wrong while decoding; the core adds its own, so that all are reported together. */
  violations: readonly FieldViolation[];
}

/** Notes which verification a call names. Anything else that a client sends as an id must not get into the log. */
export function nameVerification(call: Call, verificationId: string): void {
  if (decodeId("vrf_", verificationId) !== null) call.verificationId = verificationId;
}

/** Notes which project a call names, as above. */
export function nameProject(call: Call, projectId: string): void {
  if (decodeId("prj_", projectId) !== null) call.projectId = projectId;
}
