import type { FastifyInstance } from "fastify";
import { encodeId } from "../core/ids.ts";
import type { Span, Tracing } from "../core/tracing.ts";
import { sentStatus } from "./answered-request.ts";

declare module "fastify" {
  interface FastifyRequest {
    span: Span | undefined;
  }
}

/**
 * Makes each request a span, under the parent that its headers name. The attributes are listed here and nowhere else: a
 * URL may hold a window's token, so the route's pattern stands for it. (`@fastify/otel` would record the URL.)
 */
export function traceRequests(gateway: FastifyInstance, tracing: Tracing): void {
  gateway.decorateRequest("span", undefined);

  gateway.addHook("onRequest", (request, reply, done) => {
    const { method, routeOptions, headers } = request;
    const { url } = routeOptions;
    const span = tracing.begin(url === undefined ? method : `${method} ${url}`, {
      kind: "server",
      headers: (name) => [headers[name]].flat()[0],
    });
    request.span = span;
    reply.raw.on("close", () => {
      const { call, failure } = request;
      span.set({
        "http.request.method": method,
        "http.route": url,
        "http.response.status_code": sentStatus(reply),
        "phoneproof.request_id": request.id,
        "phoneproof.project_id":
          call?.caller.kind === "merchant" ? encodeId("prj_", call.caller.project.id) : null,
      });
      if (failure !== undefined) span.fail(failure.code, reply.raw.statusCode < 500);
      span.end();
    });
    done();
  });

  // Not earlier: in between, the connection's events read the body, outside of any span's context.
  gateway.addHook("preHandler", (request, _reply, done) => {
    if (request.span === undefined) done();
    else request.span.run(done);
  });
}
