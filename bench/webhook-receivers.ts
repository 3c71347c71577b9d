/** The merchants' endpoints of webhook-fairness.ts, in a process of their own: some answer at once, some never. */

import { once } from "node:events";
import { createServer } from "node:http";

export interface Expectation {
  /** Paths from /0 to one below this hang. */
  readonly hanging: number;
  /** Requests to the others that make a round complete. */
  readonly healthyRequests: number;
}

export interface RoundDone {
  /** `Date.now()` at the last of them. */
  readonly at: number;
  /** Requests that hung by then. */
  readonly hung: number;
}

let expected: Expectation = { hanging: 0, healthyRequests: 0 };
let healthy = 0;
let hung = 0;

const server = createServer((request, response) => {
  request.resume();
  request.on("end", () => {
    if (Number(request.url?.slice(1)) < expected.hanging) {
      hung += 1;
      return;
    }
    response.writeHead(204).end();
    healthy += 1;
    if (healthy === expected.healthyRequests) process.send?.({ at: Date.now(), hung } satisfies RoundDone);
  });
});

process.on("message", (next: Expectation) => {
  // Whatever still hangs is of the round before.
  server.closeAllConnections();
  expected = next;
  healthy = 0;
  hung = 0;
  process.send?.({ ready: true });
});
process.on("disconnect", () => process.exit());

server.listen(0, "127.0.0.1");
await once(server, "listening");
process.send?.({ port: (server.address() as { port: number }).port });
