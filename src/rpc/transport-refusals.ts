/**
 * Refusals that no call reports: of streams before they are calls, and of connections. Each is counted; the log has a line for
 * each cause, which it writes once in ten seconds, since it is about an error.
 */

import type { Http2Server } from "node:http2";
import type { TLSSocket } from "node:tls";
import type { Logger } from "pino";
import type { RefusedConnection, RefusedStream } from "../core/answered-call.ts";

/** Receives refusals for the metrics. */
export interface TransportObserver {
  streamRefused(reason: RefusedStream): void;
  connectionRefused(reason: RefusedConnection): void;
}

/** Reports the refusal of a stream: `limit` is what it would have exceeded. */
export type NoteRefusedStream = (reason: RefusedStream, limit: StreamLimit) => void;

/** Of one network's streams, or of all in this process. */
export type StreamLimit = "each" | "in_all";

const counted: Readonly<Record<RefusedStream, string>> = {
  unauthenticated: "unauthenticated streams",
  authenticating: "streams whose credential is being looked up",
  waiting: "streams that wait for their turn",
};

/** Made once: when refusals are many, there is no time to capture stack traces. */
const limits = Object.fromEntries(
  Object.entries(counted).map(([reason, streams]) => [
    reason,
    { each: limitOf("one network", streams), in_all: limitOf("the process", streams) },
  ]),
) as Readonly<Record<RefusedStream, Readonly<Record<StreamLimit, Error>>>>;

function limitOf(owner: string, streams: string): Error {
  const error = new Error(`${owner} has as many ${streams} open as it may`);
  // Where this was made says nothing.
  error.stack = String(error);
  return error;
}

export function noteRefusedStreams(parts: {
  readonly log: Logger;
  readonly observer: TransportObserver;
}): NoteRefusedStream {
  const { log, observer } = parts;
  return (reason, limit) => {
    observer.streamRefused(reason);
    log.warn({ err: limits[reason][limit] }, "gRPC streams are refused");
  };
}

/** What ends a connection without any fault of its client's, or is its client's own report of a fault. */
const endings = new Set(["ECONNRESET", "EPIPE", "ETIMEDOUT", "ERR_HTTP2_SESSION_ERROR"]);

/** Notes the connections that fail their TLS handshake, and those that do not keep to HTTP/2 or to the limits on it. */
export function noteRefusedConnections(
  server: Http2Server,
  { log, observer }: { readonly log: Logger; readonly observer: TransportObserver },
): void {
  const note = (reason: RefusedConnection, err: Error) => {
    observer.connectionRefused(reason);
    log.warn({ err }, "a connection to the gRPC port was refused");
  };
  server.on("sessionError", (error: NodeJS.ErrnoException) => {
    if (!endings.has(error.code ?? "")) note("http2", error);
  });
  server.on("tlsClientError", (error: NodeJS.ErrnoException, { authorizationError }: TLSSocket) => {
    // The types say Error; it is the code of what is wrong with the client's certificate, for which Node closes the connection.
    if (authorizationError) note("tls", new Error(`the client's certificate: ${authorizationError}`));
    else if (!endings.has(error.code ?? "")) note("tls", error);
  });
  server.on("secureConnection", (socket: TLSSocket) => {
    if (socket.alpnProtocol === "h2") return;
    // Not before it sends something: a health check may only see whether the handshake succeeds.
    socket.once("data", () => note("tls", new Error("the client does not ask for HTTP/2 (ALPN h2)")));
  });
}
