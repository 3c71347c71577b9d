import type { ServerHttp2Stream } from "node:http2";
import type { HandlerContext } from "@connectrpc/connect";
import { createContextKey } from "@connectrpc/connect";
import type { Call } from "../core/call.ts";

/** The client's IP address, put beside a request by the server. */
export const addressKey = createContextKey("", { description: "client address" });

/** What the request came on, put beside it by the server. */
export const streamKey = createContextKey<ServerHttp2Stream | undefined>(undefined, {
  description: "HTTP/2 stream",
});

/** The call as admission has let it through. */
export const callKey = createContextKey<Call | undefined>(undefined, { description: "admitted call" });

/** Throws where a service was served without the admission's interceptor: that is a bug, never a request. */
export function callOf(context: Pick<HandlerContext, "values">): Call {
  const call = context.values.get(callKey);
  if (call === undefined) throw new Error("a service was reached without admission");
  return call;
}
