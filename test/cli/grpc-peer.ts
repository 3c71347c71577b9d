/** A handwritten gRPC server, for behaviour that the real service never shows. */

import { once } from "node:events";
import http2 from "node:http2";
import type { AddressInfo } from "node:net";
import { onTestFinished } from "vitest";
import { framed } from "../rpc/raw-grpc.ts";

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

/** The id of the requests that `startVersion` refuses. */
export const unknownMethodRequestId = "req_01m8ft3r49ej2r4fch8r3mb8g6";

/**
 * Runs until the end of the test. Answers these unary methods, `package.Service/Method`, with these messages, and refuses all
 * others as a version of the service does that does not know them.
 */
export async function startVersion(answers: Readonly<Record<string, Uint8Array>>): Promise<GrpcPeer> {
  const head = { ":status": 200, "content-type": "application/grpc" };
  return startPeer((call, path) => {
    const message = answers[path.slice(1)];
    if (message === undefined) {
      const refusal = { "grpc-status": "12", "x-request-id": unknownMethodRequestId };
      call.respond({ ...head, ...refusal }, { endStream: true });
      return;
    }
    call.on("wantTrailers", () => call.sendTrailers({ "grpc-status": "0" }));
    call.respond(head, { waitForTrailers: true });
    call.end(framed(message));
  });
}

async function startPeer(take: (call: http2.ServerHttp2Stream, path: string) => void): Promise<GrpcPeer> {
  const server = http2.createServer();
  let connections = 0;
  let calls = 0;
  server.on("session", () => {
    connections += 1;
  });
  server.on("stream", (call, headers) => {
    calls += 1;
    call.on("error", () => {});
    take(call, headers[":path"] ?? "");
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  onTestFinished(() => void server.close());
  const { port } = server.address() as AddressInfo;
  return { address: `127.0.0.1:${port}`, connections: () => connections, calls: () => calls };
}
