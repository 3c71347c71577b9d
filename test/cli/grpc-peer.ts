/** A handwritten gRPC server, for behaviour that the real service never shows. */

import { once } from "node:events";
import http2 from "node:http2";
import type { AddressInfo } from "node:net";
import { create, toBinary } from "@bufbuild/protobuf";
import { BinaryWriter } from "@bufbuild/protobuf/wire";
import { AnySchema, anyPack } from "@bufbuild/protobuf/wkt";
import type { status } from "@grpc/grpc-js";
import { onTestFinished } from "vitest";
import { ErrorDetailSchema } from "../../src/gen/proto/phoneproof/v1/error_pb.ts";
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

/** The headers of a call that the service refuses with a code of its catalogue. */
export function refusalHeaders(grpcCode: status, code: string): http2.OutgoingHttpHeaders {
  return {
    "grpc-status": String(grpcCode),
    "grpc-status-details-bin": statusDetails(grpcCode, code).toString("base64"),
  };
}

/** A google.rpc.Status with a code of the service's catalogue. */
export function statusDetails(grpcCode: status, code: string): Buffer {
  const detail = anyPack(ErrorDetailSchema, create(ErrorDetailSchema, { code }));
  // 1 code, 2 message, 3 details.
  return Buffer.from(
    new BinaryWriter().tag(1, 0).int32(grpcCode).tag(3, 2).bytes(toBinary(AnySchema, detail)).finish(),
  );
}

/** The id of the requests that `startVersion` refuses. */
export const unknownMethodRequestId = "req_01m8ft3r49ej2r4fch8r3mb8g6";

/**
 * Runs until the end of the test. Answers these unary methods, `package.Service/Method`, with these messages or refusals' headers, and
 * refuses all others as a version of the service does that does not know them.
 */
export async function startVersion(
  answers: Readonly<Record<string, Uint8Array | http2.OutgoingHttpHeaders>>,
): Promise<GrpcPeer> {
  const head = { ":status": 200, "content-type": "application/grpc" };
  const unknownMethod = { "grpc-status": "12", "x-request-id": unknownMethodRequestId };
  return startPeer((call, path) => {
    const message = answers[path.slice(1)] ?? unknownMethod;
    if (!(message instanceof Uint8Array)) {
      call.respond({ ...head, ...message }, { endStream: true });
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
