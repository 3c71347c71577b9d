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

/** Null: its client went away before the answer had left. */
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
    failureCode: request.failureCode,
    charged: request.call?.usage !== undefined,
    seconds: (performance.now() - startedAt) / 1_000,
  };
}
