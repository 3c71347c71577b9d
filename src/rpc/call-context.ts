import type { ServerHttp2Stream } from "node:http2";
import { createContextKey, type HandlerContext } from "@connectrpc/connect";
import type { Checkpoint } from "../admission/admission.ts";
import type { Call } from "../core/call.ts";
import type { Span } from "../core/tracing.ts";
import type { RateLimitState } from "../failures.ts";

/** The client's IP address, set by the server. */
export const addressKey = createContextKey("", { description: "client address" });

/** The stream of the request, set by the server. */
export const streamKey = createContextKey<ServerHttp2Stream | undefined>(undefined, {
  description: "HTTP/2 stream",
});

/** The call as admission let it through. */
export const callKey = createContextKey<Call | undefined>(undefined, { description: "admitted call" });

/** A call that the gate has admitted, and whose message has not arrived yet. */
export interface AdmittedCall {
  readonly call: Call;
  readonly rateLimit: RateLimitState | undefined;
  /** The one before its authentication. */
  readonly checkpoint: Checkpoint;
  /** When it began, by `runningTime`. */
  readonly since: number;
}

/** Deleted by the interceptor: a call that still has it had no readable message. */
export const admittedKey = createContextKey<AdmittedCall | undefined>(undefined, {
  description: "call without its message",
});

/** The span of a call that the gate has admitted, if calls are traced. */
export const spanKey = createContextKey<Span | undefined>(undefined, {
  description: "span of an admitted call",
});

/** Throws if a service is reached without the admission interceptor: that is a bug, never caused by a request. */
export function callOf(context: Pick<HandlerContext, "values">): Call {
  const call = context.values.get(callKey);
  if (call === undefined) throw new Error("a service was reached without admission");
  return call;
}
