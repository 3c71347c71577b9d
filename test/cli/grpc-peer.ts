/** Speaks gRPC by hand in the service's place, where that is to behave as it never does. */

import { once } from "node:events";
import http2 from "node:http2";
import type { AddressInfo } from "node:net";
import { onTestFinished } from "vitest";

export interface GrpcPeer {
  /** `host:port` */
  readonly address: string;
  /** So many have been made. */
  connections(): number;
  calls(): number;
}

/** Until the end of the test. Each call has its head already. */
export async function startGrpcPeer(answer: (call: http2.ServerHttp2Stream) => void): Promise<GrpcPeer> {
  const server = http2.createServer();
  let connections = 0;
  let calls = 0;
  server.on("session", () => {
    connections += 1;
  });
  server.on("stream", (call) => {
    calls += 1;
    call.on("error", () => {});
    call.on("wantTrailers", () => call.sendTrailers({ "grpc-status": "0" }));
    call.respond({ ":status": 200, "content-type": "application/grpc" }, { waitForTrailers: true });
    answer(call);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  const { port } = server.address() as AddressInfo;
  return { address: `127.0.0.1:${port}`, connections: () => connections, calls: () => calls };
}
