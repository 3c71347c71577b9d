/** The merchants' endpoints in webhook-fairness.ts, in a process of their own: some answer at once, others never. */

import { once } from "node:events";
import { createServer } from "node:http";

export interface Expectation {
  /** Requests to paths below this number (/0, /1, …) hang. */
  readonly hanging: number;
  /** How many requests to the other paths complete a round. */
  readonly healthyRequests: number;
}

export interface RoundDone {
  /** `Date.now()` at the last of these requests. */
  readonly at: number;
  /** Requests that were hanging at that time. */
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
  // Connections that still hang belong to the previous round.
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
