/** Refusals of requests that reach no handler: unknown methods, other HTTP methods, and unsupported media types. */

import type http2 from "node:http2";
import { Code, ConnectError } from "@connectrpc/connect";
import { encodeEnvelope } from "@connectrpc/connect/protocol";
import {
  codeToHttpStatus,
  codeToString,
  contentTypeStreamJson,
  contentTypeStreamProto,
  createEndStreamSerialization,
  endStreamFlag,
  errorToJsonBytes,
  parseContentType as parseConnectType,
} from "@connectrpc/connect/protocol-connect";
import { parseContentType as parseGrpcType } from "@connectrpc/connect/protocol-grpc";
import type { Logger } from "pino";
import { newRequestId } from "../core/ids.ts";
import type { RpcObserver } from "./answered-call.ts";
import { binaryMethods, streamingMethods } from "./methods.ts";
import { refuseInHeaders } from "./refusal.ts";
import { isOver } from "./stream-scheduling.ts";

interface Refusal {
  /** For clients that speak neither gRPC nor Connect. */
  readonly httpStatus: number;
  readonly httpHeaders?: Readonly<Record<string, string>>;
  readonly error: ConnectError;
}

const unknownMethod: Refusal = {
  httpStatus: codeToHttpStatus(Code.Unimplemented),
  error: new ConnectError("no such method", Code.Unimplemented),
};
const otherHttpMethod: Refusal = {
  httpStatus: 405,
  httpHeaders: { allow: "POST" },
  error: new ConnectError("this is not a POST request", Code.Unimplemented),
};
const unsupportedMediaType: Refusal = {
  httpStatus: 415,
  error: new ConnectError(
    "this method does not support this Content-Type: send application/grpc or, for a unary method, application/json or application/proto",
    Code.Unimplemented,
  ),
};

export interface UnroutedRequest {
  /** `package.Service/Method`. Null: there is none of that name. */
  readonly method: string | null;
  readonly httpMethod: string;
  /** In lower case. */
  readonly mediaType: string | undefined;
}

/**
 * Creates a function that refuses, logs and counts a request that no handler can read, and then returns true. Fastify would
 * refuse some media types before it looks for the method, in words of its own, and Connect without any.
 */
export function createEarlyRefusals({ log, observer }: { log: Logger; observer: RpcObserver }) {
  return function refuseUnreadable(request: UnroutedRequest, response: http2.Http2ServerResponse): boolean {
    const refusal = refusalOf(request);
    if (refusal === undefined) return false;
    const method = request.method ?? "none";
    const requestId = newRequestId();
    answer(response, requestId, refusal);
    const code = codeToString(refusal.error.code);
    log.info({ requestId, method, code, durationMs: 0 }, "rpc");
    const streaming = streamingMethods.has(method);
    observer.begun(method, streaming);
    observer.answered({ method, streaming, code, failureCode: undefined, seconds: 0 });
    return true;
  };
}

function refusalOf({ method, httpMethod, mediaType }: UnroutedRequest): Refusal | undefined {
  if (method === null) return unknownMethod;
  if (httpMethod !== "POST") return otherHttpMethod;
  return isReadable(method, mediaType) ? undefined : unsupportedMediaType;
}

/** Whether a media type, in lower case, is that of a protocol in which the method can be called. */
function isReadable(method: string, mediaType: string | undefined): boolean {
  const grpc = parseGrpcType(mediaType ?? null);
  const connect = parseConnectType(mediaType ?? null);
  if (binaryMethods.has(method) && (grpc?.binary === false || connect?.binary === false)) return false;
  return grpc !== undefined || connect?.stream === streamingMethods.has(method);
}

const endOfStream = createEndStreamSerialization(undefined);

/**
 * Answers in the client's own protocol: a client of gRPC, or of a stream over Connect, would have to guess the code from an HTTP
 * status. It would guess unknown, on which it may retry.
 */
function answer(
  response: http2.Http2ServerResponse,
  requestId: string,
  { httpStatus, httpHeaders, error }: Refusal,
): void {
  const { stream, req } = response;
  // The client may have disconnected by now.
  if (isOver(stream)) return;
  const metadata = { "x-request-id": requestId };
  const mediaType = req.headers["content-type"] ?? "";
  if (/^application\/grpc(?:\+proto|\+json)?(?:;|$)/.test(mediaType)) {
    refuseInHeaders(stream, error.code, error.rawMessage, metadata);
    return;
  }
  const connect = parseConnectType(mediaType);
  if (connect?.stream && req.method === "POST") {
    const streamType = connect.binary ? contentTypeStreamProto : contentTypeStreamJson;
    response.writeHead(200, { "content-type": streamType, ...metadata });
    response.end(encodeEnvelope(endStreamFlag, endOfStream.serialize({ metadata: new Headers(), error })));
    return;
  }
  response.writeHead(httpStatus, { "content-type": "application/json", ...httpHeaders, ...metadata });
  response.end(errorToJsonBytes(error, undefined));
}
