/**
 * gRPC by hand over HTTP/2: for what no library sends or holds back, and for what a library would do on the
 * client's side before the server has a chance.
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
  /** Sends a message, with `packed` one that is in the call's `grpc-encoding`; resolves when HTTP/2 has taken it off this side's hands. */
  send(message: Uint8Array, packed?: boolean): Promise<void>;
  /** Sends bytes that need not be a message. */
  write(bytes: Uint8Array): void;
  /** Ends this side. */
  halfClose(): void;
  /** Cuts the call, as a client does that goes away. */
  cut(): void;
  /** The next message; undefined after the last. Until it is asked for, nothing is read. */
  next(): Promise<Uint8Array | undefined>;
  /** What the server ended with: the gRPC status as a number, its message, and what details it gave. */
  readonly status: Promise<RawStatus>;
  /** What came in the block that held the status. */
  readonly trailers: Promise<http2.IncomingHttpHeaders>;
  /** When nothing is left of it, though this side has not ended. */
  readonly closed: Promise<void>;
}

export interface RawConnection {
  call(path: string, headers?: Record<string, string>): RawCall;
  /** As a client ends that has made its calls: settles when the server has nothing left of them either. */
  close(): Promise<void>;
  /** As if the cable were cut. */
  destroy(): void;
}

const prefixBytes = 5;

/** To `host:port`. `windowBytes`: so much of an answer is taken before it is asked for. */
export function connectRaw(address: string, { windowBytes = 65_535 } = {}): RawConnection {
  const session = http2.connect(`http://${address}`, { settings: { initialWindowSize: windowBytes } });
  session.on("error", () => {});

  return {
    call(path, headers = {}) {
      const stream = session.request({
        ":method": "POST",
        ":path": `/${path}`,
        "content-type": "application/grpc",
        te: "trailers",
        ...headers,
      });
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
        cut: () => stream.close(http2.constants.NGHTTP2_CANCEL),
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

/** `packed`: in the call's `grpc-encoding`. */
export function framed(message: Uint8Array, packed = false): Buffer {
  const frame = Buffer.alloc(prefixBytes + message.length);
  frame[0] = packed ? 1 : 0;
  frame.writeUInt32BE(message.length, 1);
  frame.set(message, prefixBytes);
  return frame;
}

/** What the other side of a call sends. */
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
