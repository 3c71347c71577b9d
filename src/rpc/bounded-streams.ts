import { Code, ConnectError, type Interceptor } from "@connectrpc/connect";
import { addressKey } from "./call-context.ts";

/** Enough for every balancer and client that looks whether the service is well; each costs some 50 KiB. */
const mostInAll = 1_000;
const mostOfAnAddress = 500;

/** Bounds the streams of those who are not asked who they are. */
export function boundedStreams(): Interceptor {
  let open = 0;
  const perAddress = new Map<string, number>();
  return (next) => async (request) => {
    // Of one that has ended already no end would be heard.
    if (!request.stream || request.signal.aborted) return next(request);
    const address = request.contextValues.get(addressKey);
    const ofAddress = perAddress.get(address) ?? 0;
    if (open >= mostInAll || ofAddress >= mostOfAnAddress) {
      throw new ConnectError("too many of these streams are open: end some", Code.ResourceExhausted);
    }
    open++;
    perAddress.set(address, ofAddress + 1);
    // Aborts however the stream ends.
    request.signal.addEventListener(
      "abort",
      () => {
        open--;
        const left = (perAddress.get(address) ?? 1) - 1;
        if (left === 0) perAddress.delete(address);
        else perAddress.set(address, left);
      },
      { once: true },
    );
    return next(request);
  };
}
