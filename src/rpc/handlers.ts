/** What stands around Connect's handlers. */

import type {
  UniversalHandler,
  UniversalServerRequest,
  UniversalServerResponse,
} from "@connectrpc/connect/protocol";

/** The same handler, whose requests are answered by `answer`. */
export function around(
  handler: UniversalHandler,
  answer: (request: UniversalServerRequest) => Promise<UniversalServerResponse>,
): UniversalHandler {
  return Object.assign(answer, handler);
}

/** The bytes of a request; undefined where something has parsed them. */
export function bytesOf({ body }: UniversalServerRequest): AsyncIterable<Uint8Array> | undefined {
  return typeof body === "object" && body !== null && Symbol.asyncIterator in body ? body : undefined;
}
