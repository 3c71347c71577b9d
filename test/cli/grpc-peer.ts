/** A handwritten gRPC server, for behaviour that the real service never shows. */

import { once } from "node:events";
import http2 from "node:http2";
import type { AddressInfo } from "node:net";
import { onTestFinished } from "vitest";

export interface GrpcPeer {
  /** `host:port` */
  readonly address: string;
  /** Number of connections so far. */
  connections(): number;
  /** Number of calls so far. */
  calls(): number;
}

/** Runs until the end of the test. `answer` gets each call after the response headers were sent. */
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
