import type { ServerHttp2Stream } from "node:http2";
import type { HandlerContext } from "@connectrpc/connect";
import { createContextKey } from "@connectrpc/connect";
import type { Look } from "../admission/admission.ts";
import type { Call } from "../core/call.ts";
import type { RateLimitState } from "../failures.ts";

/** The client's IP address, put beside a request by the server. */
export const addressKey = createContextKey("", { description: "client address" });

/** What the request came on, put beside it by the server. */
export const streamKey = createContextKey<ServerHttp2Stream | undefined>(undefined, {
  description: "HTTP/2 stream",
});

/** The call as admission has let it through. */
export const callKey = createContextKey<Call | undefined>(undefined, { description: "admitted call" });

/** A call that the gate has let through and whose message is awaited. */
export interface AdmittedCall {
  readonly call: Call;
  readonly rateLimit: RateLimitState | undefined;
  /** The look at its credential, with which it began. */
  readonly look: Look;
}

/** Taken away by the interceptor: what is left of it had no message that could be read. */
export const admittedKey = createContextKey<AdmittedCall | undefined>(undefined, {
  description: "call without its message",
});

/** Throws where a service was served without the admission's interceptor: that is a bug, never a request. */
export function callOf(context: Pick<HandlerContext, "values">): Call {
  const call = context.values.get(callKey);
  if (call === undefined) throw new Error("a service was reached without admission");
  return call;
}
