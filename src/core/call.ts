import type { FieldViolation } from "../failures.ts";
import type { Caller } from "./project.ts";
import type { UsageCount } from "./usage.ts";

/**
 * One authenticated call on its way through the core, whichever face it came in by.
 *
 * Invariant: `usage` is set at most once, by whatever charged the call. A face that finds it set reports
 * it; admission charges a refused call only where it is not.
 */
export interface Call {
  /** `req_…` */
  readonly requestId: string;
  /** The client's IP address. */
  readonly address: string;
  /** Who calls; on a stream looked up anew with each message, so that a revocation reaches open ones. */
  caller: Caller;
  usage: UsageCount | undefined;
  /** What the face found wrong while decoding; the core adds its own, so that all are told at once. */
  violations: readonly FieldViolation[];
}
