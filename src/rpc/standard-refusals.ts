/** Refusals of the standard services (health, reflection): with gRPC's own codes, since they have none of the catalogue. */

import { Code, ConnectError } from "@connectrpc/connect";
import type { UniversalHandler } from "@connectrpc/connect/protocol";
import { findTrailerError, setTrailerStatus } from "@connectrpc/connect/protocol-grpc";
import { around } from "./handlers.ts";
import { toMessageFailure } from "./message-errors.ts";
import { refusalIn } from "./unreadable-calls.ts";

const unreadable = new ConnectError("the message could not be decoded", Code.InvalidArgument);
const isUnreadable = (error: ConnectError | undefined) =>
  error !== undefined && toMessageFailure(error)?.code === "malformed_request";

/** Wraps a handler so that an unreadable message counts as the client's fault. Connect blames the server. */
export function withClientFaultErrors(handler: UniversalHandler): UniversalHandler {
  return around(handler, async (request) => {
    const response = await handler(request);
    const { status, body, trailer } = response;
    if (trailer !== undefined) {
      return body === undefined ? response : { ...response, body: untilRefused(body, trailer) };
    }
    if (status === 200) return response;
    const { error, again } = await refusalIn(response);
    return isUnreadable(error) ? again(unreadable) : response;
  });
}

/** Refuses a stream at the unreadable message, after the responses to the messages before it. */
async function* untilRefused(body: AsyncIterable<Uint8Array>, trailer: Headers) {
  yield* body;
  if (!isUnreadable(findTrailerError(trailer))) return;
  trailer.delete("grpc-status-details-bin");
  setTrailerStatus(trailer, unreadable);
}
