/**
 * gRPC calls by the hundred, as frames on a plain socket: with an HTTP/2 client, each would cost the tests' process as much
 * as it costs the service.
 */
import { once } from "node:events";
import { constants } from "node:http2";
import net from "node:net";
import { onTestFinished } from "vitest";
import { callHeaders, endHeaders, endStream, frame, frameTypes, preface } from "../security/http2-frames.ts";
import { framed } from "./raw-grpc.ts";

/** The flag of a SETTINGS frame that answers one. */
const acknowledged = 0x1;

export interface PlainConnection {
  /**
   * Makes so many calls in one write, each with this message. Returns their streams. `leaveOpen`: this side of them is
   * not ended. `frameBytes`: the message is sent in frames of so many bytes, a whole number of them.
   */
  call(
    count: number,
    path: string,
    headers?: Readonly<Record<string, string>>,
    more?: { message?: Uint8Array; leaveOpen?: boolean; frameBytes?: number },
  ): number[];
  /** Streams on which a part of a message has arrived. */
  readonly answered: ReadonlySet<number>;
  /** Streams that the service has ended. */
  readonly ended: ReadonlySet<number>;
  /** Resolves when the service has ended all these streams. */
  untilEnded(streamIds: readonly number[]): Promise<void>;
  /** Resets a call, by default as one that its client cancels. With bytes, those are sent before it in the same write. */
  cut(streamId: number, code?: number, bytes?: Uint8Array): void;
  destroy(): void;
}

/** Connects to `host:port` until the end of the test. `windowBytes`: how much of an answer is taken. */
export async function connectPlain(address: string, { windowBytes = 65_535 } = {}): Promise<PlainConnection> {
  const [host = "", port] = address.split(":");
  const socket = net.connect({ host, port: Number(port) });
  onTestFinished(() => void socket.destroy());
  await once(socket, "connect");
  socket.on("error", () => {});
  const window = Buffer.of(0, 4, 0, 0, 0, 0);
  window.writeUInt32BE(windowBytes, 2);
  socket.write(Buffer.concat([preface, frame("settings", 0, 0, window)]));

  const [answered, ended] = [new Set<number>(), new Set<number>()];
  socket.on("close", () => socket.emit("ended"));
  let unread = Buffer.alloc(0);
  socket.on("data", (bytes: Buffer) => {
    const received = Buffer.concat([unread, bytes]);
    const endedBefore = ended.size;
    let at = 0;
    while (at + 9 <= received.length && at + 9 + received.readUIntBE(at, 3) <= received.length) {
      const length = received.readUIntBE(at, 3);
      const [type, flags = 0, streamId] = [received[at + 3], received[at + 4], received.readUInt32BE(at + 5)];
      if (type === frameTypes.settings && flags === 0) {
        socket.write(frame("settings", acknowledged, 0));
        socket.emit("acknowledged");
      }
      const isAnswer = type === frameTypes.headers || type === frameTypes.data;
      if (type === frameTypes.data && length > 0) answered.add(streamId);
      if (type === frameTypes.rstStream || (isAnswer && (flags & endStream) !== 0)) ended.add(streamId);
      at += 9 + length;
    }
    unread = received.subarray(at);
    if (ended.size > endedBefore) socket.emit("ended");
  });

  // Before it, the service takes less of a message.
  await once(socket, "acknowledged");

  let nextId = 1;
  return {
    call(count, path, headers = {}, { message, leaveOpen = false, frameBytes } = {}) {
      const block = callHeaders(`/${path}`, headers);
      const ids = Array.from({ length: count }, (_, index) => nextId + 2 * index);
      nextId += 2 * count;
      const end = leaveOpen ? 0 : endStream;
      const frames = ids.flatMap((id) =>
        message === undefined
          ? [frame("headers", endHeaders | end, id, block)]
          : [frame("headers", endHeaders, id, block), dataFrames(id, framed(message), end, frameBytes)],
      );
      socket.write(Buffer.concat(frames));
      return ids;
    },
    answered,
    ended,
    async untilEnded(streamIds) {
      while (!streamIds.every((id) => ended.has(id))) {
        if (socket.destroyed) throw new Error("the service has ended the connection");
        await once(socket, "ended");
      }
    },
    cut(streamId, code = constants.NGHTTP2_CANCEL, bytes) {
      const last = bytes === undefined ? [] : [frame("data", 0, streamId, bytes)];
      socket.write(Buffer.concat([...last, frame("rstStream", 0, streamId, Buffer.of(0, 0, 0, code))]));
    },
    destroy: () => void socket.destroy(),
  };
}

/** Written as one, since an object for each frame would take the tests' process longer than the frame takes the service. */
function dataFrames(id: number, bytes: Buffer, lastFlags: number, frameBytes = bytes.length): Buffer {
  const first = frame("data", 0, id, bytes.subarray(0, frameBytes));
  const all = Buffer.alloc((bytes.length / frameBytes) * first.length, first);
  for (let at = 0; at < bytes.length; at += frameBytes) {
    all.set(bytes.subarray(at, at + frameBytes), (at / frameBytes + 1) * first.length - frameBytes);
  }
  all[all.length - first.length + 4] = lastFlags;
  return all;
}

/**
 * Until the end of the test, errors have no stack. Node makes one for each stream that is cut, and mapping its stack to the
 * sources takes the tests' process longer than the call.
 */
export function leaveOutStackTraces(): void {
  const { stackTraceLimit } = Error;
  Error.stackTraceLimit = 0;
  onTestFinished(() => {
    Error.stackTraceLimit = stackTraceLimit;
  });
}
