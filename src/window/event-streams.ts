import type { ServerResponse } from "node:http";
import { StreamBounds } from "../admission/stream-bounds.ts";

/** Proxies and phones drop a connection that is silent for a minute, often sooner. */
const beatMs = 15_000;
const beatEvent = "event: beat\ndata:\n\n";

/** A stream costs memory only, 31 KiB with its socket as bench/idle-windows.ts measures; beyond this a window asks instead. */
const most = { inAll: 20_000, each: 10 };

export interface EventStream {
  /** Ends with the connection, or when the process stops. */
  readonly signal: AbortSignal;
  send(event: string, data: unknown): void;
  end(): void;
}

/** The open streams of server-sent events of this process. */
export interface EventStreams {
  /** Null where there is no room for another in all or of a window, and once all are closed. */
  open(response: ServerResponse, token: string, headers: Record<string, string>): EventStream | null;
  /** Ends all of them, and opens none any more; their windows come again. */
  close(): void;
  /** Why `open` answers null from then on. */
  readonly isClosed: boolean;
}

/** Told of streams as they come and go. */
export interface EventStreamObserver {
  opened(): void;
  closed(): void;
}

export function createEventStreams(observer: EventStreamObserver): EventStreams {
  const open = new Map<
    ServerResponse,
    { readonly controller: AbortController; readonly giveBack: () => void }
  >();
  const bounds = new StreamBounds(most);
  let beating: NodeJS.Timeout | undefined;
  let isClosed = false;

  /** May be told more than once. */
  function release(response: ServerResponse): void {
    const entry = open.get(response);
    if (entry === undefined) return;
    open.delete(response);
    entry.giveBack();
    observer.closed();
    entry.controller.abort();
  }

  function beat(): void {
    for (const response of open.keys()) {
      if (response.destroyed) release(response);
      else if (isUntaken(response)) response.destroy();
      // One that has ended may still wait behind another on its connection. Written to, it would end the process.
      else if (!response.writableEnded) response.write(beatEvent);
    }
  }

  return {
    open(response, token, headers) {
      // A client that was gone before its stream began is not heard of again.
      if (response.destroyed || isClosed) return null;
      const giveBack = bounds.take(token);
      if (typeof giveBack === "string") return null;
      const controller = new AbortController();
      open.set(response, { controller, giveBack });
      observer.opened();
      beating ??= setInterval(beat, beatMs).unref();
      response.on("close", () => release(response));
      response.writeHead(200, { ...headers, "content-type": "text/event-stream; charset=utf-8" });
      // Windows that lose a process do not all come to the next one at the same moment. Where a proxy holds the beat back, they
      // know better than from the head alone.
      response.write(`retry: ${1_000 + Math.floor(Math.random() * 2_000)}\n\n${beatEvent}`);
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

/** Whoever has not taken the last beat yet, or the end, is not there any more. */
function isUntaken(response: ServerResponse): boolean {
  return response.writableEnded ? response.socket?.writableNeedDrain === true : response.writableNeedDrain;
}
