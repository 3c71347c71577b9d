import type { ServerResponse } from "node:http";
import { StreamBounds } from "../admission/stream-bounds.ts";

/** Heartbeat interval: proxies and phones drop a connection that is silent for a minute, often sooner. */
const beatMs = 15_000;
const beatEvent = "event: beat\ndata:\n\n";

/**
 * A stream costs only memory, 31 KiB with its socket (bench/idle-windows.ts); windows beyond these limits poll. The windows of
 * one project hold at most `perFree` times as many as are free, so that those of all others find a fifth free.
 */
const most = { inAll: 20_000, each: 10, perFree: 4 };

export interface EventStream {
  /** Ends with the connection, or when the process stops. */
  readonly signal: AbortSignal;
  send(event: string, data: unknown): void;
  end(): void;
}

/** This process's open streams of server-sent events. */
export interface EventStreams {
  /**
   * Opens a stream. Null if the limit in total, of the project or of the window is reached, after `close`, or if the client has left:
   * the response is then destroyed.
   */
  open(
    response: ServerResponse,
    window: { readonly token: string; readonly projectId: string },
    headers: Record<string, string>,
  ): EventStream | null;
  /** Ends all streams and opens no more; the windows reconnect. */
  close(): void;
  /** After `close`, the reason why `open` returns null. */
  readonly isClosed: boolean;
}

/** Notified of streams that open and close. */
export interface EventStreamObserver {
  opened(): void;
  closed(): void;
}

export function createEventStreams(observer: EventStreamObserver, limits = most): EventStreams {
  const open = new Map<
    ServerResponse,
    { readonly controller: AbortController; readonly projectId: string; readonly giveBack: () => void }
  >();
  const bounds = new StreamBounds(limits);
  const perProject = new Map<string, number>();
  let beating: NodeJS.Timeout | undefined;
  let isClosed = false;

  /** Idempotent. */
  function release(response: ServerResponse): void {
    const entry = open.get(response);
    if (entry === undefined) return;
    open.delete(response);
    entry.giveBack();
    const left = (perProject.get(entry.projectId) ?? 1) - 1;
    if (left === 0) perProject.delete(entry.projectId);
    else perProject.set(entry.projectId, left);
    observer.closed();
    entry.controller.abort();
  }

  function beat(): void {
    for (const response of open.keys()) {
      if (response.destroyed) release(response);
      else if (isStalled(response)) response.destroy();
      // An ended response may still be queued behind another on its connection; writing to it would raise an error that ends
      // the process.
      else if (!response.writableEnded) response.write(beatEvent);
    }
  }

  return {
    open(response, { token, projectId }, headers) {
      // If the client disconnected before the stream began, no further event would report it. One that has half-closed has left,
      // too, as if it did so during the stream; only a beat would find it out.
      if (response.socket?.readableEnded) response.destroy();
      if (response.destroyed || isClosed) return null;
      const held = perProject.get(projectId) ?? 0;
      if (held >= limits.perFree * (limits.inAll - open.size)) return null;
      const giveBack = bounds.take(token);
      if (typeof giveBack === "string") return null;
      perProject.set(projectId, held + 1);
      const controller = new AbortController();
      open.set(response, { controller, projectId, giveBack });
      observer.opened();
      beating ??= setInterval(beat, beatMs).unref();
      response.on("close", () => release(response));
      response.writeHead(200, { ...headers, "content-type": "text/event-stream; charset=utf-8" });
      // A random retry delay: windows that lose a process must not all reconnect to the next one at the same moment.
      response.write(`retry: ${1_000 + Math.floor(Math.random() * 2_000)}\n\n`);
      return {
        signal: controller.signal,
        send(event, data) {
          response.write(`event: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
        },
        end: () => response.end(),
      };
    },
    get isClosed() {
      return isClosed;
    },
    close() {
      isClosed = true;
      clearInterval(beating);
      for (const [response, { controller }] of open) {
        controller.abort();
        response.end();
      }
    },
  };
}

/** Whether the client has read so little that the write buffers are full: it is treated as gone. */
function isStalled(response: ServerResponse): boolean {
  return response.writableEnded ? response.socket?.writableNeedDrain === true : response.writableNeedDrain;
}
