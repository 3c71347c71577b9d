/** A finished call, over REST or gRPC, as reported to the metrics. */

import type { FailureCode } from "../failures.ts";

export interface AnsweredRequest {
  readonly method: string;
  /** The route's pattern, since a URL may contain a window token. Undefined if no route matched. */
  readonly route: string | undefined;
  /** Null if the client disconnected before the response was sent. */
  readonly status: number | null;
  /** The error catalogue's code, if the request failed. */
  readonly failureCode: FailureCode | undefined;
  readonly seconds: number;
}

export interface AnsweredRpc {
  /** `phoneproof.v1.VerificationService/GetVerification`; `none` for unknown methods: clients must not invent metric labels. */
  readonly method: string;
  /** A stream's duration is not meaningful as a latency. */
  readonly streaming: boolean;
  /** A code of the error catalogue, a gRPC status code, or `ok`. */
  readonly code: string;
  /** The error catalogue's code if the call failed; `code` alone is ambiguous, since some of the two share a spelling. */
  readonly failureCode: FailureCode | undefined;
  readonly seconds: number;
}

/**
 * Why a gRPC stream was refused before it was a call: too many without a valid credential are open, or too many whose credential
 * is being looked up, or that wait for their turn.
 */
export const refusedStreams = ["unauthenticated", "authenticating", "waiting"] as const;
export type RefusedStream = (typeof refusedStreams)[number];

/** What a connection to the gRPC port failed in. */
export const refusedConnections = ["tls", "http2"] as const;
export type RefusedConnection = (typeof refusedConnections)[number];
