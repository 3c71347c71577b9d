import type { FastifyReply, FastifyRequest } from "fastify";

/** A request that is over, for those who count them. */
export interface AnsweredRequest {
  readonly method: string;
  /** The route's pattern: a URL may hold a window's token. Undefined where there is no route. */
  readonly route: string | undefined;
  /** Null: its client went away before the answer had left. */
  readonly status: number | null;
  /** The catalogue's code of its refusal. */
  readonly failureCode: string | undefined;
  /** Whether it was counted as usage. */
  readonly charged: boolean;
  readonly seconds: number;
}

export function answeredRequest(
  request: FastifyRequest,
  reply: FastifyReply,
  startedAt: number,
): AnsweredRequest {
  return {
    method: request.method,
    route: request.routeOptions.url,
    status: reply.raw.writableFinished ? reply.raw.statusCode : null,
    failureCode: request.failureCode,
    charged: request.call?.usage !== undefined,
    seconds: (performance.now() - startedAt) / 1_000,
  };
}
