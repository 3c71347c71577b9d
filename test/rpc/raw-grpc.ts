/**
 * gRPC directly over HTTP/2: for bytes and pauses that no client library produces, and for errors that a library would detect
 * before the server does.
 */
import http2 from "node:http2";
import { findTrailerError } from "@connectrpc/connect/protocol-grpc";
import { type ErrorDetail, ErrorDetailSchema } from "../../src/gen/proto/phoneproof/v1/error_pb.ts";

export interface RawStatus {
  readonly code: number;
  readonly message: string;
  readonly detail?: ErrorDetail | undefined;
}

export interface RawCall {
  /** Sends a message, if `packed` one compressed in the call's `grpc-encoding`. Resolves when HTTP/2 has accepted it. */
  send(message: Uint8Array, packed?: boolean): Promise<void>;
  /** Sends bytes that need not be a message. */
  write(bytes: Uint8Array): void;
  /** Ends this side. */
  halfClose(): void;
  /** Resets the call with CANCEL, without ending this side before. */
  cut(): void;
  /** The next message; undefined after the last. Nothing is read before the first call. */
  next(): Promise<Uint8Array | undefined>;
  /** How the server ended the call: the gRPC status as a number, its message and its details. */
  readonly status: Promise<RawStatus>;
  /** The header block that contained the status. */
  readonly trailers: Promise<http2.IncomingHttpHeaders>;
  /** Resolves when the call is closed, even if this side has not ended it. */
  readonly closed: Promise<void>;
}

export interface RawConnection {
  call(path: string, headers?: Record<string, string | readonly string[]>): RawCall;
  /** Closes the connection gracefully: resolves when the server has finished all calls too. */
  close(): Promise<void>;
  /** Cuts the connection. */
  destroy(): void;
}

const prefixBytes = 5;

/** Connects to `host:port`. `windowBytes`: how much of an answer is received before it is read. */
export function connectRaw(address: string, { windowBytes = 65_535 } = {}): RawConnection {
  // strictSingleValueFields is not in the types of this version; without it, Node refuses to repeat a header.
  const options = { settings: { initialWindowSize: windowBytes }, strictSingleValueFields: false };
  const session = http2.connect(`http://${address}`, options);
  session.on("error", () => {});

  return {
    call(path, headers = {}) {
      // By Node's `close`, this side would end before the reset.
      const cancelling = new AbortController();
      const stream = session.request(
        {
          ":method": "POST",
          ":path": `/${path}`,
          "content-type": "application/grpc",
          te: "trailers",
          ...headers,
        },
        { signal: cancelling.signal },
      );
      stream.on("error", () => {});
      const chunks = messagesOf(stream);
      const closed = new Promise<void>((resolve) => stream.on("close", () => resolve()));
      const trailers = new Promise<http2.IncomingHttpHeaders>((resolve) => {
        const seen = (fields: http2.IncomingHttpHeaders) => {
          if (fields["grpc-status"] !== undefined) resolve(fields);
        };
        stream.on("response", seen);
        stream.on("trailers", seen);
        stream.on("close", () => resolve({}));
      });
      return {
        send: (message, packed = false) =>
          new Promise((resolve, reject) => {
            stream.write(framed(message, packed), (error) => (error ? reject(error) : resolve()));
          }),
        halfClose: () => stream.end(),
        cut: () => cancelling.abort(),
        next: async () => (await chunks.next()).value,
        write: (bytes) => void stream.write(bytes),
        status: trailers.then(statusOf),
        trailers,
        closed,
      };
    },
    close: () => new Promise((resolve) => session.close(resolve)),
    destroy: () => session.destroy(),
  };
}

function statusOf(fields: http2.IncomingHttpHeaders): RawStatus {
  const code = fields["grpc-status"];
  if (code === undefined) return { code: -1, message: "the stream ended without a status" };
  return { code: Number(code), message: String(fields["grpc-message"] ?? ""), detail: detailOf(fields) };
}

function detailOf(fields: http2.IncomingHttpHeaders): ErrorDetail | undefined {
  const details = fields["grpc-status-details-bin"];
  if (details === undefined) return undefined;
  const headers = new Headers({
    "grpc-status": String(fields["grpc-status"]),
    "grpc-status-details-bin": String(details),
  });
  return findTrailerError(headers)?.findDetails(ErrorDetailSchema)[0];
}

/** `packed`: the message is compressed in the call's `grpc-encoding`. */
export function framed(message: Uint8Array, packed = false): Buffer {
  const frame = Buffer.alloc(prefixBytes + message.length);
  frame[0] = packed ? 1 : 0;
  frame.writeUInt32BE(message.length, 1);
  frame.set(message, prefixBytes);
  return frame;
}

/** The messages that the other side of a call sends. */
export async function* messagesOf(stream: http2.Http2Stream): AsyncGenerator<Uint8Array, undefined> {
  let rest = Buffer.alloc(0);
  try {
    for await (const chunk of stream) {
      rest = Buffer.concat([rest, chunk]);
      while (rest.length >= prefixBytes && rest.length >= prefixBytes + rest.readUInt32BE(1)) {
        const end = prefixBytes + rest.readUInt32BE(1);
        yield rest.subarray(prefixBytes, end);
        rest = rest.subarray(end);
      }
    }
  } catch {
    // A call that was cut has no more messages.
  }
  return undefined;
}
