/** The service's own side of connections, for what its clients cannot see. */

import { subscribe, unsubscribe } from "node:diagnostics_channel";
import type { IncomingMessage } from "node:http";
import type net from "node:net";

/** The service's socket of the next connection that requests this path. */
export function connectionOf(path: string): Promise<net.Socket> {
  return new Promise((resolve) => {
    const look = (message: unknown) => {
      const { request, socket } = message as { request: IncomingMessage; socket: net.Socket };
      if (request.url !== path) return;
      unsubscribe("http.server.request.start", look);
      resolve(socket);
    };
    subscribe("http.server.request.start", look);
  });
}

/** Returns how many requests with this path the service has parsed since. */
export function requestsOf(path: string, onTestFinished: (then: () => void) => void): () => number {
  let requests = 0;
  const count = (message: unknown) => {
    if ((message as { request: IncomingMessage }).request.url === path) requests += 1;
  };
  subscribe("http.server.request.start", count);
  onTestFinished(() => void unsubscribe("http.server.request.start", count));
  return () => requests;
}

/** Resolves when the service gives up waiting for the rest of a request on this socket of its own. */
export function timeoutOf(socket: net.Socket): Promise<void> {
  const { server } = socket as net.Socket & { readonly server: net.Server };
  return new Promise((resolve) => {
    const look = (_error: Error, timedOut: unknown) => {
      if (timedOut !== socket) return;
      server.off("clientError", look);
      resolve();
    };
    server.on("clientError", look);
  });
}
