/** Wraps Connect's handlers. */

import type {
  UniversalHandler,
  UniversalServerRequest,
  UniversalServerResponse,
} from "@connectrpc/connect/protocol";

/** Length of gRPC's prefix of each message: a byte of flags, and four of the message's length. */
export const prefixBytes = 5;

/** Returns the same handler, except that `answer` handles its requests. */
export function around(
  handler: UniversalHandler,
  answer: (request: UniversalServerRequest) => Promise<UniversalServerResponse>,
): UniversalHandler {
  return Object.assign(answer, handler);
}

/** The body of a request as bytes; undefined if it was parsed already. */
export function bytesOf({ body }: UniversalServerRequest): AsyncIterable<Uint8Array> | undefined {
  return typeof body === "object" && body !== null && Symbol.asyncIterator in body ? body : undefined;
}
