/** A persistent merchant's server: it repeats each call unchanged until it is answered with anything but 503. */

import { setTimeout as delay } from "node:timers/promises";
import { undescribed } from "../harness/contract.ts";
import type { Balancer } from "./balancer.ts";
import type { Journal, Operation } from "./journal.ts";
import type { Random } from "./random.ts";
import type { ServiceLife } from "./service-process.ts";

export interface Answered {
  readonly status: number;
  readonly body: string;
}

export interface MerchantCalls {
  create(random: Random, key: string, request: object): Promise<Answered>;
  read(random: Random, id: string): Promise<Answered>;
  cancel(random: Random, id: string): Promise<Answered>;
  /** One call to this process only; undefined if it was not answered. */
  tryOnce(
    life: ServiceLife,
    operation: Operation,
    subject: string,
    request?: object,
  ): Promise<Answered | undefined>;
}

/** Longer than any answer may take. */
const answerTimeoutMs = 30_000;
/** How long a call is repeated before that counts as a violation. */
const callTimeoutMs = 90_000;

let calls = 0;

export function merchantCalls(parts: {
  readonly journal: Journal;
  readonly balancer: Balancer;
  readonly apiKey: string;
}): MerchantCalls {
  const { journal, balancer, apiKey } = parts;
  const authorization = `Bearer ${apiKey}`;

  async function tryOnce(
    life: ServiceLife,
    operation: Operation,
    subject: string,
    request: object = {},
  ): Promise<Answered | undefined> {
    const call = ++calls;
    journal.append({ what: "asked", call, operation, subject, to: life.name });
    const { method, path, init } = requestOf(operation, subject, request);
    const startedAt = performance.now();
    try {
      const response = await fetch(`${life.httpUrl}${path}`, {
        ...init,
        method,
        headers: { authorization, ...init.headers },
        signal: AbortSignal.timeout(answerTimeoutMs),
      });
      const body = await response.text();
      const { status, headers } = response;
      journal.append({
        what: "answered",
        call,
        status,
        ms: Math.round(performance.now() - startedAt),
        body,
        replayed: headers.get("idempotent-replayed"),
        usage: headers.get("x-usage-calls"),
        retryAfter: headers.get("retry-after"),
        undescribed: undescribed(method, path, { status, headers, body: JSON.parse(body) }),
      });
      return { status, body };
    } catch (thrown) {
      const ms = Math.round(performance.now() - startedAt);
      journal.append({ what: "unanswered", call, ms, error: wordsOf(thrown), excused: life.killed });
      return undefined;
    }
  }

  async function untilAnswered(
    random: Random,
    operation: Operation,
    subject: string,
    request?: object,
  ): Promise<Answered> {
    const deadline = performance.now() + callTimeoutMs;
    for (;;) {
      const answer = await tryOnce(await balancer.choose(random), operation, subject, request);
      if (answer !== undefined && answer.status !== 503) return answer;
      if (performance.now() > deadline) throw new Error(`${operation} ${subject} was never answered`);
      await delay(random.between(20, 80));
    }
  }

  return {
    tryOnce,
    create: (random, key, request) => untilAnswered(random, "create", key, request),
    read: (random, id) => untilAnswered(random, "read", id),
    cancel: (random, id) => untilAnswered(random, "cancel", id),
  };
}

function requestOf(operation: Operation, subject: string, request: object) {
  if (operation === "create") {
    const headers = { "content-type": "application/json", "idempotency-key": subject };
    return { method: "POST", path: "/v1/verifications", init: { headers, body: JSON.stringify(request) } };
  }
  const path = `/v1/verifications/${subject}`;
  if (operation === "read") return { method: "GET", path, init: { headers: {} } };
  return { method: "POST", path: `${path}/cancel`, init: { headers: {} } };
}

export function wordsOf(thrown: unknown): string {
  const { message, cause } = thrown as { message?: string; cause?: { code?: string; message?: string } };
  return [message ?? String(thrown), cause?.code, cause?.message].filter((word) => word).join(": ");
}
