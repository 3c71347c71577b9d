/** The HTTP/1.1 server under the ops port's Fastify: whoever reaches it may ask, but not for more than can be answered. */

import { createServer, type RequestListener, type Server } from "node:http";
import type { Socket } from "node:net";

/** Enough for every prober and scraper there may be. */
const maxConnections = 256;

/**
 * Answers one request at a time on a connection: a request that comes while another is under way ends it. Node holds a
 * connection back by the bytes of its answers that wait, which are none as long as an answer is being made; until then all
 * that can be read would become requests. Neither Prometheus nor any prober sends the next before it has its answer.
 */
export function createOpsHttpServer(listener: RequestListener): Server {
  const busy = new WeakSet<Socket>();
  const server = createServer(
    {
      headersTimeout: 5_000,
      requestTimeout: 10_000,
      connectionsCheckingInterval: 1_000,
      // Longer than scrapes are usually apart, a minute.
      keepAliveTimeout: 75_000,
    },
    (request, response) => {
      const { socket } = request;
      if (busy.has(socket)) {
        socket.destroy();
        return;
      }
      busy.add(socket);
      response.once("close", () => busy.delete(socket));
      listener(request, response);
    },
  );
  server.maxConnections = maxConnections;
  // Who is turned away finds room when he asks again, unless all of them are busy.
  server.on("drop", () => server.closeIdleConnections());
  // Of somebody who does not read his answer.
  server.setTimeout(30_000);
  return server;
}
