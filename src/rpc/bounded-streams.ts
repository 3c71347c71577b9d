import { Code, ConnectError, type Interceptor } from "@connectrpc/connect";
import { addressKey } from "./call-context.ts";
import { StreamBounds } from "./stream-bounds.ts";

/** Enough for every balancer and client that looks whether the service is well; each costs some 50 KiB. */
const most = { inAll: 1_000, each: 500 };

/** Bounds the streams of those who are not asked who they are, in all and by their addresses. */
export function boundedStreams(): Interceptor {
  const bounds = new StreamBounds(most);
  return (next) => async (request) => {
    // Of one that has ended already no end would be heard.
    if (!request.stream || request.signal.aborted) return next(request);
    const giveBack = bounds.take(request.contextValues.get(addressKey));
    if (typeof giveBack === "string") {
      throw new ConnectError("too many of these streams are open: end some", Code.ResourceExhausted);
    }
    // Aborts however the stream ends.
    request.signal.addEventListener("abort", giveBack, { once: true });
    return next(request);
  };
}
