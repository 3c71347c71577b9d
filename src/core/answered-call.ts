/** A call that is over, at either face, for those who count them. */

import type { FailureCode } from "../failures.ts";

export interface AnsweredRequest {
  readonly method: string;
  /** The route's pattern: a URL may hold a window's token. Undefined where there is no route. */
  readonly route: string | undefined;
  /** Null: its client went away before the answer had left. */
  readonly status: number | null;
  /** The catalogue's code of its refusal. */
  readonly failureCode: FailureCode | undefined;
  /** Whether it was counted as usage. */
  readonly charged: boolean;
  readonly seconds: number;
}

export interface AnsweredRpc {
  /** `phoneproof.v1.VerificationService/GetVerification`; `none` where there is no such method: a client's name would be a label. */
  readonly method: string;
  /** Its duration says nothing then. */
  readonly streaming: boolean;
  /** The catalogue's, gRPC's own, or `ok`. */
  readonly code: string;
  /** The catalogue's code of its refusal, which may be spelled as one of gRPC's own. */
  readonly failureCode: FailureCode | undefined;
  readonly charged: boolean;
  readonly seconds: number;
}
