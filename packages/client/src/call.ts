/** One call of the API, tried again until there is an answer or the time is up. */

import { PhoneproofError, type ServiceRefusal } from "./error.js";

/** Where the service is, and how patient to be with it. */
export interface Settings {
  /** The service's address, such as `https://phoneproof.example`. */
  readonly baseUrl: string;
  /** The project's secret key, `pp_live_…` or `pp_test_…`. It must never leave your server. */
  readonly apiKey: string;
  /** How long a call may take with all its retries, in milliseconds. By default 30000. */
  readonly timeoutMs?: number | undefined;
  /** How long to wait for one answer before trying again, in milliseconds. By default 10000. */
  readonly attemptTimeoutMs?: number | undefined;
  /** The pause before the first retry, in milliseconds; it doubles up to 5000. By default 200. `Retry-After` prolongs it. */
  readonly retryPauseMs?: number | undefined;
  /** Instead of the runtime's own `fetch`: for proxies, tracing, tests. */
  readonly fetch?: ((url: string, init: RequestInit) => Promise<Response>) | undefined;
}

/** What every call takes. */
export interface CallOptions {
  /** Gives the call up, which then rejects with the signal's reason. A creation may have been made all the same. */
  readonly signal?: AbortSignal | undefined;
  /** How long this call may take with all its retries, in milliseconds. By default the client's. */
  readonly timeoutMs?: number | undefined;
}

interface Call extends CallOptions {
  readonly method: "GET" | "POST";
  readonly path: string;
  /** Made once: every attempt sends the same text. */
  readonly body?: string | undefined;
  readonly idempotencyKey?: string | undefined;
}

/** An attempt that brought no answer to return. */
interface Setback {
  readonly error: PhoneproofError;
  readonly isLasting: boolean;
  readonly retryAfterMs: number;
}

export const defaultTimeoutMs = 30_000;

const longestPauseMs = 5_000;

/** A longer one goes off at once. */
const longestTimerMs = 2 ** 31 - 1;

/** Statuses with which a proxy says what will pass. The service's own are 429 and 503. */
const passing = new Set([408, 429, 500, 502, 503, 504]);

export async function callService<Answer>(settings: Settings, call: Call): Promise<Answer> {
  const { signal } = call;
  const until = performance.now() + (call.timeoutMs ?? settings.timeoutMs ?? defaultTimeoutMs);
  for (let pauseMs = settings.retryPauseMs ?? 200; ; pauseMs = Math.min(pauseMs * 2, longestPauseMs)) {
    signal?.throwIfAborted();
    const leftMs = Math.min(settings.attemptTimeoutMs ?? 10_000, until - performance.now());
    const answer = await attempt(settings, call, leftMs);
    if (!("error" in answer)) return answer as Answer;
    const { error, isLasting, retryAfterMs } = answer as Setback;
    const waitMs = Math.max(retryAfterMs, pauseMs * (0.5 + Math.random() / 2));
    if (isLasting || performance.now() + waitMs >= until) throw error;
    await pause(waitMs, signal);
  }
}

async function attempt(settings: Settings, call: Call, timeoutMs: number): Promise<object | Setback> {
  const { method, path, body = null, idempotencyKey, signal } = call;
  const { baseUrl, apiKey, fetch = globalThis.fetch } = settings;
  const attemptEnds = new AbortController();
  const end = () => attemptEnds.abort();
  // Not AbortSignal.any: of what it makes, some versions of Node lose sight before the time is up.
  const timer = setTimeout(end, Math.min(timeoutMs, longestTimerMs));
  signal?.addEventListener("abort", end);
  try {
    const response = await fetch(baseUrl.replace(/\/+$/, "") + path, {
      method,
      headers: {
        authorization: `Bearer ${apiKey}`,
        ...(idempotencyKey && { "content-type": "application/json", "idempotency-key": idempotencyKey }),
      },
      body,
      // Followed, a creation would arrive elsewhere as a read.
      redirect: "manual",
      signal: attemptEnds.signal,
    });
    return understood(response, await response.text(), idempotencyKey);
  } catch (cause) {
    signal?.throwIfAborted();
    const message = `${method} ${path}: no answer from ${baseUrl}`;
    const error = new PhoneproofError(message, { code: "no_answer", idempotencyKey, cause });
    return { error, isLasting: false, retryAfterMs: 0 };
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", end);
  }
}

interface ErrorBody {
  readonly error: {
    readonly code: ServiceRefusal["code"];
    readonly message: string;
    readonly request_id?: string;
    readonly fields?: readonly { readonly field: string; readonly message: string }[];
  };
}

function understood(response: Response, text: string, idempotencyKey: string | undefined): object | Setback {
  const { status, ok, headers } = response;
  let body: { readonly id?: unknown; readonly error?: { readonly code?: unknown } } | null = null;
  try {
    body = JSON.parse(text);
  } catch (cause) {
    // Something in between has cut it off: whether it was made the next attempt will tell.
    if (ok && headers.get("content-type")?.includes("json")) throw cause;
  }
  if (ok && typeof body?.id === "string") return body;
  const retryAfterMs = retryAfter(headers);
  const isLasting = !passing.has(status);
  if (ok || typeof body?.error?.code !== "string") {
    const message = `status ${status}, but no answer of phoneproof: check baseUrl`;
    const error = new PhoneproofError(message, { code: "unexpected_answer", status, idempotencyKey });
    return { error, isLasting, retryAfterMs };
  }
  // That it has a code was seen above; the rest is the contract's word.
  const { code, message, request_id: requestId, fields } = (body as unknown as ErrorBody).error;
  const error = new PhoneproofError(message, {
    code,
    status,
    requestId,
    idempotencyKey,
    ...(status === 422 && { fields: fields ?? [] }),
    ...(!isLasting && { retryAfterSeconds: Math.max(1, Math.ceil(retryAfterMs / 1000)) }),
  } as ConstructorParameters<typeof PhoneproofError>[1]);
  return { error, isLasting, retryAfterMs };
}

/** Seconds, or a date as proxies may send it. */
function retryAfter(headers: Headers): number {
  const value = headers.get("retry-after") ?? "";
  const ms = /^\d+$/.test(value) ? Number(value) * 1000 : Date.parse(value) - Date.now();
  return ms > 0 ? ms : 0;
}

/** Rejects with the signal's reason. */
export function pause(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const abort = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", abort);
      resolve();
    }, ms);
    signal?.addEventListener("abort", abort, { once: true });
    if (signal?.aborted) abort();
  });
}
