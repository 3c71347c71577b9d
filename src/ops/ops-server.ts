import fastify, { type FastifyInstance } from "fastify";
import type { Registry } from "prom-client";

/**
 * What those who run the service ask it: whether the process is alive, whether it can answer callers, and
 * its metrics. No authentication, so it listens where only they can reach it.
 */
export function createOpsServer(parts: {
  readonly isReady: () => Promise<boolean>;
  /** Still answers, and is not to be sent anything more. */
  readonly isStopping: () => boolean;
  readonly metrics: Registry;
}): FastifyInstance {
  const server = fastify({ logger: false, requestTimeout: 10_000 });
  server.get("/healthz", async (_request, reply) => reply.type("text/plain").send("alive\n"));
  server.get("/readyz", async (_request, reply) => {
    if (parts.isStopping()) return reply.status(503).type("text/plain").send("not ready: it is stopping\n");
    const ready = await parts.isReady();
    return reply
      .status(ready ? 200 : 503)
      .type("text/plain")
      .send(ready ? "ready\n" : "not ready: the database cannot be reached or is not migrated\n");
  });
  server.get("/metrics", async (_request, reply) =>
    reply.type(parts.metrics.contentType).send(await parts.metrics.metrics()),
  );
  return server;
}
