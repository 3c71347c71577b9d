/** Joins the small pieces in which a message arrives. */

import type { UniversalHandler } from "@connectrpc/connect/protocol";
import { around, bytesOf, prefixBytes } from "./handlers.ts";

/** Up to this many bytes of an incomplete message are held here. */
const mostHeldBytes = 4_096;

/** The media types in which each message has a prefix. */
const prefixedTypes = /^application\/(?:grpc|connect\+)/;

/**
 * Wraps a handler: of an incomplete message it gets no small pieces. At each piece, Connect walks through all that it has of the
 * message, so that one of a hundred thousand pieces, which a client can send as frames of a byte each, would take it many seconds.
 */
export function withJoinedPieces(handler: UniversalHandler): UniversalHandler {
  return around(handler, (request) => {
    const body = bytesOf(request);
    const isPrefixed = prefixedTypes.test(request.header.get("content-type") ?? "");
    return handler(body !== undefined && isPrefixed ? { ...request, body: joined(body) } : request);
  });
}

/** The same bytes. A piece that ends a prefix or a message is passed on at once, with what was held of it. */
function joined(body: AsyncIterable<Uint8Array>): AsyncIterable<Uint8Array> {
  return {
    [Symbol.asyncIterator]() {
      const chunks = body[Symbol.asyncIterator]();
      const endsPart = partEnds();
      let held: Buffer | undefined;
      let heldBytes = 0;
      const flush = (piece: Uint8Array) => {
        const value = held === undefined ? piece : Buffer.concat([held.subarray(0, heldBytes), piece]);
        held = undefined;
        heldBytes = 0;
        return { done: false, value };
      };
      return {
        async next() {
          for (;;) {
            const result = await chunks.next();
            // An incomplete rest comes before the end, which is read once more.
            if (result.done) return held === undefined ? result : flush(new Uint8Array());
            const piece = result.value;
            if (endsPart(piece) || heldBytes + piece.length >= mostHeldBytes) return flush(piece);
            held ??= Buffer.allocUnsafe(mostHeldBytes);
            held.set(piece, heldBytes);
            heldBytes += piece.length;
          }
        },
        return: async () => (await chunks.return?.()) ?? { done: true, value: undefined },
      };
    },
  };
}

/** Returns a function that takes the bytes of a stream of messages, and tells whether a prefix or a message ends within these. */
function partEnds(): (bytes: Uint8Array) => boolean {
  let prefixLeft = prefixBytes;
  let messageLeft = 0;
  return (bytes) => {
    let isEnd = false;
    for (let at = 0; at < bytes.length; ) {
      if (prefixLeft > 0) {
        // The first byte has flags.
        messageLeft = prefixLeft === prefixBytes ? 0 : messageLeft * 256 + (bytes[at] as number);
        prefixLeft -= 1;
        at += 1;
        isEnd ||= prefixLeft === 0;
      } else {
        const taken = Math.min(messageLeft, bytes.length - at);
        messageLeft -= taken;
        at += taken;
      }
      if (prefixLeft > 0 || messageLeft > 0) continue;
      prefixLeft = prefixBytes;
      isEnd = true;
    }
    return isEnd;
  };
}
