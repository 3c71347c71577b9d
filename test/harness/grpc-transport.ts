import type { Transport } from "@connectrpc/connect";
import { createGrpcTransport } from "@connectrpc/connect-node";

/** A transport to `host:port` with this Authorization header, or without one if it is empty. */
export function transportTo(grpcAddress: string, authorization: string): Transport {
  return createGrpcTransport({
    baseUrl: `http://${grpcAddress}`,
    interceptors: [
      (next) => (request) => {
        if (authorization !== "") request.header.set("authorization", authorization);
        return next(request);
      },
    ],
  });
}
