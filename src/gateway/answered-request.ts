import type { FastifyReply, FastifyRequest } from "fastify";
import type { AnsweredRequest } from "../core/answered-call.ts";

/** Null if the client disconnected before the response had left. */
export function sentStatus({ raw }: FastifyReply): number | null {
  return raw.writableFinished ? raw.statusCode : null;
}

export function answeredRequest(
  request: FastifyRequest,
  reply: FastifyReply,
  startedAt: number,
): AnsweredRequest {
  return {
    method: request.method,
    route: request.routeOptions.url,
    status: sentStatus(reply),
    failureCode: request.failure?.code,
    seconds: (performance.now() - startedAt) / 1_000,
  };
}
