import type { Transport } from "@connectrpc/connect";
import { createGrpcTransport, type Http2SessionManager } from "@connectrpc/connect-node";

/** A transport to `host:port` with this Authorization header, or without one if it is empty. */
export function transportTo(
  grpcAddress: string,
  authorization: string,
  sessionManager?: Http2SessionManager,
): Transport {
  return createGrpcTransport({
    baseUrl: `http://${grpcAddress}`,
    ...(sessionManager && { sessionManager }),
    interceptors: [
      (next) => (request) => {
        if (authorization !== "") request.header.set("authorization", authorization);
        return next(request);
      },
    ],
  });
}
