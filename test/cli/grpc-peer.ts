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
  return startPeer((call) => {
    call.on("wantTrailers", () => call.sendTrailers({ "grpc-status": "0" }));
    call.respond({ ":status": 200, "content-type": "application/grpc" }, { waitForTrailers: true });
    answer(call);
  });
}

/** Runs until the end of the test. Refuses each call with these headers, which have its status. */
export async function startRefusingPeer(headers: http2.OutgoingHttpHeaders): Promise<GrpcPeer> {
  return startPeer((call) =>
    call.respond({ ":status": 200, "content-type": "application/grpc", ...headers }, { endStream: true }),
  );
}

async function startPeer(take: (call: http2.ServerHttp2Stream) => void): Promise<GrpcPeer> {
  const server = http2.createServer();
  let connections = 0;
  let calls = 0;
  server.on("session", () => {
    connections += 1;
  });
  server.on("stream", (call) => {
    calls += 1;
    call.on("error", () => {});
    take(call);
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  const { port } = server.address() as AddressInfo;
  return { address: `127.0.0.1:${port}`, connections: () => connections, calls: () => calls };
}
