import fastify, { type FastifyInstance } from "fastify";
import type { Registry } from "prom-client";
import { createOpsHttpServer } from "./ops-http-server.ts";
import type { Readiness } from "./readiness.ts";
import { shareRenderings } from "./renderings.ts";

const readinessTexts: Readonly<Record<Readiness, string>> = {
  ready: "ready",
  starting: "not ready: it is starting",
  stopping: "not ready: it is stopping",
  database_away: "not ready: the database cannot be reached",
  database_refusing: "not ready: the database refuses the login or the check: the log has its reason",
  database_unfit: "not ready: the database takes no writes, or lacks tables of this version",
};

/**
 * The operators' endpoints: whether the process is alive, whether it can take calls, and its metrics. No authentication, so it
 * listens where only operators can reach it.
 */
export function createOpsServer(parts: {
  readonly readiness: () => Promise<Readiness>;
  readonly metrics: Registry;
}): FastifyInstance {
  const server = fastify({ logger: false, serverFactory: createOpsHttpServer });
  const metrics = shareRenderings(() => parts.metrics.metrics());
  server.get("/healthz", async (_request, reply) => reply.type("text/plain").send("alive\n"));
  server.get("/readyz", async (_request, reply) => {
    const readiness = await parts.readiness();
    return reply
      .status(readiness === "ready" ? 200 : 503)
      .type("text/plain")
      .send(`${readinessTexts[readiness]}\n`);
  });
  server.get("/metrics", async (_request, reply) =>
    reply.type(parts.metrics.contentType).send(await metrics()),
  );
  server.setNotFoundHandler((_request, reply) =>
    reply.status(404).type("text/plain").send("not found: there are /healthz, /readyz and /metrics\n"),
  );
  return server;
}
