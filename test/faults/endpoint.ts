/** The merchant's webhook endpoint: records each event in the journal before it acknowledges it. */

import { once } from "node:events";
import { createServer } from "node:http";
import type { Journal } from "./journal.ts";

export interface Endpoint {
  readonly url: string;
  close(): Promise<void>;
}

export async function startEndpoint(journal: Journal): Promise<Endpoint> {
  const server = createServer((request, response) => {
    const chunks: Buffer[] = [];
    request.on("data", (chunk: Buffer) => chunks.push(chunk));
    request.on("end", () => {
      const { type, data } = JSON.parse(Buffer.concat(chunks).toString("utf8"));
      const eventId = String(request.headers["webhook-id"]);
      const ageSeconds = Date.now() / 1_000 - Number(request.headers["webhook-timestamp"]);
      if (!(Math.abs(ageSeconds) < 60)) {
        journal.append({ what: "violation", text: `${eventId} was signed ${ageSeconds} s ago` });
      }
      journal.append({ what: "delivered", eventId, type, verificationId: data.id });
      response.writeHead(204).end();
    });
  });
  server.listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as { port: number };
  return {
    url: `http://127.0.0.1:${port}/hook`,
    async close() {
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
