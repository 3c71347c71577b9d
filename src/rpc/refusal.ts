/** How the gRPC server refuses calls: with the catalogue's code as an error detail, and the metadata of every response. */

import type { ServerHttp2Stream } from "node:http2";
import { create } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";
import type { Call } from "../core/call.ts";
import type { Failure, RateLimitState } from "../failures.ts";
import { ErrorDetailSchema } from "../gen/proto/phoneproof/v1/error_pb.ts";

const codes: Record<Failure["grpc"], Code> = {
  invalid_argument: Code.InvalidArgument,
  unauthenticated: Code.Unauthenticated,
  permission_denied: Code.PermissionDenied,
  not_found: Code.NotFound,
  already_exists: Code.AlreadyExists,
  failed_precondition: Code.FailedPrecondition,
  resource_exhausted: Code.ResourceExhausted,
  unavailable: Code.Unavailable,
  internal: Code.Internal,
};

/** What the gateway sends as headers, under the same names. */
export function* metadataOf(
  requestId: string,
  call: Call | undefined,
  rateLimit: RateLimitState | undefined,
): Iterable<[string, string]> {
  yield ["x-request-id", requestId];
  if (call?.usage) {
    yield ["x-usage-calls", String(call.usage.calls)];
    yield ["x-usage-limit", call.usage.limit === null ? "unlimited" : String(call.usage.limit)];
  }
  if (rateLimit) {
    yield ["ratelimit-policy", rateLimit.policy];
    yield ["ratelimit", rateLimit.state];
  }
}

export function connectError(
  failure: Failure,
  requestId: string,
  call?: Call,
  rateLimit?: RateLimitState,
): ConnectError {
  const metadata = new Headers([...metadataOf(requestId, call, failure.rateLimit ?? rateLimit)]);
  if (failure.retryAfterSeconds !== undefined) metadata.set("retry-after", String(failure.retryAfterSeconds));
  // Over Connect, the status of a unary call is 401 then, which has to name the scheme (RFC 9110, 15.5.2).
  if (failure.grpc === "unauthenticated") metadata.set("www-authenticate", "Bearer");
  const detail = create(ErrorDetailSchema, {
    code: failure.code,
    requestId,
    fields: failure.fields.map(({ field, message }) => ({ field, message })),
    retryAfterSeconds: failure.retryAfterSeconds ?? 0,
  });
  return new ConnectError(failure.message, codes[failure.grpc], metadata, [
    { desc: ErrorDetailSchema, value: detail },
  ]);
}

/**
 * Refuses a gRPC call whose request is not read any further, by headers that end the stream: flow control does not hold
 * headers back. A gRPC status in headers that do not end the stream would not count. `message` must be printable ASCII
 * without a percent sign.
 */
export function refuseInHeaders(
  stream: ServerHttp2Stream,
  code: Code,
  message: string,
  metadata: Readonly<Record<string, string>> = {},
): void {
  stream.respond(
    {
      ":status": 200,
      "content-type": "application/grpc",
      "grpc-status": String(code),
      "grpc-message": message,
      ...metadata,
    },
    { endStream: true },
  );
}
