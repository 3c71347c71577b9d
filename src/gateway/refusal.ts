/** How the gateway refuses calls: the contract's ApiError and the headers that go with it. */

import type { FastifyReply } from "fastify";
import type { Failure, FieldViolation, RateLimitState } from "../failures.ts";
import { lingerAtClose } from "./linger.ts";

interface ApiError {
  error: {
    code: string;
    message: string;
    request_id: string;
    fields?: readonly FieldViolation[];
  };
}

export function presentFailure(failure: Failure, requestId: string): ApiError {
  const error: ApiError["error"] = { code: failure.code, message: failure.message, request_id: requestId };
  if (failure.status === 422) error.fields = failure.fields;
  return { error };
}

/** Answers with a failure. Where admission has to settle it, the caller of this function has done so. */
export function refuse(reply: FastifyReply, failure: Failure): void {
  prepareRefusal(reply, failure);
  reply.code(failure.status).send(presentFailure(failure, reply.request.id));
}

/** Does everything for a refusal but set its status and send its body. */
export function prepareRefusal(reply: FastifyReply, failure: Failure): void {
  const { request } = reply;
  request.failure = failure;
  if (!request.raw.complete) lingerAtClose(request.raw.socket);
  setUsage(reply);
  if (failure.rateLimit !== undefined) setRateLimit(reply, failure.rateLimit);
  if (failure.status === 429 || failure.status === 503) {
    reply.header("retry-after", Math.max(1, Math.ceil(failure.retryAfterSeconds ?? 1)));
  }
  if (failure.status === 401) reply.header("www-authenticate", "Bearer");
}

/** Sets the usage headers, unless the call was not charged. */
export function setUsage(reply: FastifyReply): void {
  const usage = reply.request.call?.usage;
  if (usage === undefined) return;
  reply.header("x-usage-calls", String(usage.calls));
  reply.header("x-usage-limit", usage.limit === null ? "unlimited" : String(usage.limit));
}

export function setRateLimit(reply: FastifyReply, rateLimit: RateLimitState): void {
  reply.header("ratelimit-policy", rateLimit.policy);
  reply.header("ratelimit", rateLimit.state);
}
