/** gRPC in JSON with a lone surrogate in its text: Connect repeats that text in its refusal, where it cannot be encoded. */

import { Code, ConnectError } from "@connectrpc/connect";
import {
  createAsyncIterable,
  type UniversalHandler,
  type UniversalServerRequest,
} from "@connectrpc/connect/protocol";
import { setTrailerStatus } from "@connectrpc/connect/protocol-grpc";
import { around } from "./handlers.ts";

const grpcJson = "application/grpc+json";
const unwritable = new ConnectError("the message could not be decoded", Code.InvalidArgument);

/** Wraps a handler: a refusal that cannot be encoded is replaced by a fixed one. */
export function withEncodableErrors(handler: UniversalHandler): UniversalHandler {
  async function inWords(request: UniversalServerRequest) {
    try {
      const response = await handler(request);
      const { body, trailer } = response;
      if (body === undefined || trailer === undefined) return response;
      return { ...response, body: untilUnwritable(body, trailer) };
    } catch (error) {
      if (!(error instanceof URIError)) throw error;
      const header = new Headers({ "content-type": grpcJson });
      const trailer = setTrailerStatus(new Headers(), unwritable);
      return { status: 200, header, body: createAsyncIterable([]), trailer };
    }
  }
  return around(handler, (request) =>
    request.header.get("content-type")?.startsWith(grpcJson) ? inWords(request) : handler(request),
  );
}

async function* untilUnwritable(body: AsyncIterable<Uint8Array>, trailer: Headers) {
  try {
    yield* body;
  } catch (error) {
    if (!(error instanceof URIError)) throw error;
    setTrailerStatus(trailer, unwritable);
  }
}
