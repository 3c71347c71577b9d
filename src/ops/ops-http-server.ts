/** The HTTP/1.1 server under the ops port's Fastify. Anybody who reaches it may send requests, but not more than it can answer. */

import { createServer, type RequestListener, type Server } from "node:http";
import type { Socket } from "node:net";
import { closeInTurns } from "../closing-turns.ts";
import { readRequestsInTurns } from "../request-turns.ts";

/** Enough for every prober and scraper there may be. */
const maxConnections = 256;

/**
 * Handles one request at a time per connection; one that comes while another is in progress closes the connection. Node's
 * backpressure counts the bytes of responses that wait to be written, of which there are none while a response is being made;
 * until then all that can be read would become requests. Neither Prometheus nor any prober sends a request before it has the
 * response to the last one.
 */
export function createOpsHttpServer(listener: RequestListener): Server {
  const busy = new WeakSet<Socket>();
  const server = createServer(
    {
      headersTimeout: 5_000,
      requestTimeout: 10_000,
      connectionsCheckingInterval: 1_000,
      // Longer than the usual scrape interval, a minute.
      keepAliveTimeout: 75_000,
      // Node would answer each of thousands of pipelined requests without one by itself, before it closes the connection.
      requireHostHeader: false,
    },
    (request, response) => {
      const { socket, headers, httpVersion } = request;
      if (busy.has(socket)) {
        closeInTurns(socket);
        socket.destroy();
        return;
      }
      busy.add(socket);
      response.once("close", () => busy.delete(socket));
      if (headers.host !== undefined || httpVersion !== "1.1") listener(request, response);
      else response.writeHead(400, { connection: "close" }).end();
    },
  );
  // So it would those with other expectations than 100-continue, which may be ignored (RFC 9110, 10.1.1).
  server.on("checkExpectation", (request, response) => server.emit("request", request, response));
  // What is read at once of a connection that is closed for a further request may hold thousands of them.
  readRequestsInTurns(server);
  server.maxConnections = maxConnections;
  // A client that is turned away finds room when it retries, unless all connections are busy.
  server.on("drop", () => server.closeIdleConnections());
  // For a client that does not read its response.
  server.setTimeout(30_000);
  return server;
}
