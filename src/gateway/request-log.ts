import type { FastifyReply, FastifyRequest } from "fastify";
import type { Logger } from "pino";
import { encodeId } from "../core/ids.ts";
import type { Failure } from "../failures.ts";

/**
 * One line a request, written when it is over, whether it was answered or its client went away (`status` is
 * null then). The fields are listed here and nowhere else: a URL may hold a window's token and a header a
 * key, so the route's pattern stands for the one, and nothing for the other.
 */
export function logRequest(
  log: Logger,
  request: FastifyRequest,
  reply: FastifyReply,
  startedAt: number,
): void {
  if (!log.isLevelEnabled("info")) return;
  const caller = request.call?.caller;
  log.info(
    {
      requestId: request.id,
      method: request.method,
      route: request.routeOptions.url,
      status: reply.raw.writableFinished ? reply.raw.statusCode : null,
      durationMs: Math.round((performance.now() - startedAt) * 1000) / 1000,
      projectId: caller?.kind === "merchant" ? encodeId("prj_", caller.project.id) : undefined,
      code: request.failureCode,
    },
    "request",
  );
}

/** At once and by itself: the request's line waits for the answer to leave. The client never sees the stack. */
export function logFault(log: Logger, request: FastifyRequest, failure: Failure): void {
  log.error({ requestId: request.id, err: failure.cause ?? failure }, "internal error");
}
