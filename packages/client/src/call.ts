/** One call of the API, with retries until there is an answer or the time is up. */

import { type FieldProblem, PhoneproofError } from "./error.js";

/** What the client passes to `fetch`: a `RequestInit` of any implementation of it. */
export interface FetchInit {
  readonly method: "GET" | "POST";
  readonly headers: Record<string, string>;
  readonly body: string | null;
  readonly cache?: "no-store";
  readonly redirect: "manual";
  readonly signal: AbortSignal;
}

/** What the client needs of a response: a `Response` of any implementation of `fetch`. */
export interface FetchResponse {
  readonly status: number;
  readonly ok: boolean;
  readonly headers: { get(name: string): string | null };
  text(): Promise<string>;
}

/** The service's address and credentials, timeouts and retries. */
export interface Settings {
  /** The service's address, such as `https://phoneproof.example`. */
  readonly baseUrl: string;
  /** The project's secret key, `pp_live_…` or `pp_test_…`. It must never leave your server. */
  readonly apiKey: string;
  /** Timeout of a call including all its retries, in milliseconds. By default 30000. */
  readonly timeoutMs?: number | undefined;
  /** Timeout of one attempt before the next retry, in milliseconds. By default 10000. */
  readonly attemptTimeoutMs?: number | undefined;
  /** The pause before the first retry, in milliseconds; it doubles up to 5000. By default 200. `Retry-After` prolongs it. */
  readonly retryPauseMs?: number | undefined;
  /** Replaces the runtime's `fetch`: for proxies, tracing, tests. It must honour `init.signal`, which enforces the timeouts. */
  readonly fetch?: ((url: string, init: FetchInit) => Promise<FetchResponse>) | undefined;
}

/** Options of every call. */
export interface CallOptions {
  /**
   * Aborts the call, which then rejects with code `aborted` and the signal's reason as `cause`. A creation may nevertheless
   * have been carried out: the error has its `idempotencyKey`.
   */
  readonly signal?: AbortSignal | undefined;
  /** Timeout of this call including all its retries, in milliseconds. By default the client's. */
  readonly timeoutMs?: number | undefined;
}

interface Call extends CallOptions {
  readonly method: "GET" | "POST";
  readonly path: string;
  /** Serialized once, so that every attempt sends the same text. */
  readonly body?: string | undefined;
  readonly idempotencyKey?: string | undefined;
}

/** Of an attempt: its answer, or null and why there is none. A tuple, as the bundle has a limit of size. */
type Outcome = readonly [
  answer: object | null,
  error?: PhoneproofError,
  retryAfterMs?: number,
  isLasting?: boolean,
];

export const defaultTimeoutMs = 30_000;

const longestPauseMs = 5_000;

/** A timer with a longer delay would fire immediately. */
const longestTimerMs = 2 ** 31 - 1;

/**
 * Statuses of a proxy that a retry does not change: not implemented, HTTP version not supported, network login required,
 * invalid certificate.
 */
const lasting = [501, 505, 511, 526];

/**
 * Whether a status is worth a retry. The service itself sends 429 and 503; the others come from proxies, such as Cloudflare's
 * 520 to 524.
 */
const isPassing = (status: number) =>
  (status >= 500 && !lasting.includes(status)) || [408, 425, 429].includes(status);

/**
 * Next.js caches responses of `fetch` unless told otherwise: a verification would stay pending forever, and phone numbers would
 * be stored in its cache. Workers runtimes that lack this option reject it, and do not cache responses to authorized requests.
 */
const notKept: Pick<FetchInit, "cache"> =
  "cache" in (globalThis.Request?.prototype ?? {}) ? { cache: "no-store" } : {};

/** A monotonic clock, which changes of the system time do not affect. */
export const now = () => performance.now();

/** The class name. `instanceof` does not work here: test runners and sandboxes have several copies of each class. */
export const classOf = (value: unknown) => Object.prototype.toString.call(value).slice(8, -1);

/** Of anything else, such as a promise that was not awaited or a Map, no field would be read: it would count as `{}`. */
export function checkObject(value: unknown, argument: string): void {
  const kind = classOf(value);
  if (!/^(Object|Module)$/.test(kind)) throw new TypeError(`${argument} must be an object, not ${kind}`);
}

/** The names of all settings and options. */
const optionNames = [
  "apiKey",
  "attemptTimeoutMs",
  "baseUrl",
  "fetch",
  "idempotencyKey",
  "pollMs",
  "retryPauseMs",
  "signal",
  "timeoutMs",
  "toleranceSeconds",
];

const simplified = (name: string) => name.toLowerCase().replace(/[_-]/g, "");
const bySimplifiedName = new Map(optionNames.map((name) => [simplified(name), name]));

/**
 * Throws a TypeError for invalid options. Without this, an invalid time would remove the pauses or let a call never end,
 * something that is not a signal, such as its controller, would abort nothing, and an `idempotency_key` would be replaced by a
 * random one. Other unknown names are ignored, and so is `baseURL` beside `baseUrl`: one object of settings may serve several
 * libraries.
 */
export function checkOptions(options: object, argument = "options"): void {
  checkObject(options, argument);
  for (const [name, value] of Object.entries(options)) {
    const meant = bySimplifiedName.get(simplified(name));
    if (meant !== undefined && !(meant in options) && value !== undefined) {
      throw new TypeError(`${name} must be written ${meant}`);
    }
    if (name === "signal" && !/^(AbortSignal|Undefined|Null)$/.test(classOf(value))) {
      throw new TypeError("signal must be an AbortSignal");
    }
    const isTime = /(Ms|Seconds)$/.test(name) && value !== undefined;
    if (isTime && !(typeof value === "number" && value > 0)) {
      throw new TypeError(`${name} must be a number above 0`);
    }
  }
}

export async function callService<Answer>(settings: Settings, call: Call): Promise<Answer> {
  const { signal, idempotencyKey } = call;
  const until = now() + (call.timeoutMs ?? settings.timeoutMs ?? defaultTimeoutMs);
  for (let pauseMs = settings.retryPauseMs ?? 200; ; pauseMs = Math.min(pauseMs * 2, longestPauseMs)) {
    if (signal?.aborted) {
      throw new PhoneproofError("aborted", { code: "aborted", idempotencyKey, cause: signal.reason });
    }
    const leftMs = Math.min(settings.attemptTimeoutMs ?? 10_000, until - now());
    const [answer, error, retryAfterMs = 0, isLasting] = await attempt(settings, call, leftMs);
    if (answer) return answer as Answer;
    const waitMs = Math.max(retryAfterMs, pauseMs * (0.5 + Math.random() / 2));
    if (!signal?.aborted && (isLasting || now() + waitMs >= until)) throw error;
    await pause(waitMs, signal);
    // A timer may fire late.
    if (!signal?.aborted && now() >= until) throw error;
  }
}

async function attempt(settings: Settings, call: Call, timeoutMs: number): Promise<Outcome> {
  const { method, path, body = null, idempotencyKey, signal } = call;
  const { baseUrl, apiKey, fetch = globalThis.fetch } = settings;
  const attemptEnds = new AbortController();
  const end = after(timeoutMs, signal, () => attemptEnds.abort());
  try {
    const response = await fetch(baseUrl.replace(/\/+$/, "") + path, {
      method,
      headers: {
        authorization: `Bearer ${apiKey}`,
        ...(idempotencyKey && { "content-type": "application/json", "idempotency-key": idempotencyKey }),
      },
      body,
      ...notKept,
      // If a redirect were followed, a creation would arrive at the target as a GET.
      redirect: "manual",
      signal: attemptEnds.signal,
    });
    return understood(response, await response.text(), idempotencyKey);
  } catch (cause) {
    const message = `${method} ${path}: no answer from ${baseUrl}`;
    return [null, new PhoneproofError(message, { code: "no_answer", idempotencyKey, cause })];
  } finally {
    end();
  }
}

/** The parts of an answer that are used before it is known to come from the service. */
interface Body {
  readonly id?: unknown;
  readonly error?: {
    readonly code?: unknown;
    readonly message?: string;
    readonly request_id?: string;
    readonly fields?: FieldProblem | readonly FieldProblem[];
  };
}

function understood(response: FetchResponse, text: string, idempotencyKey: string | undefined): Outcome {
  const { status, ok, headers } = response;
  let body: Body | null = null;
  try {
    body = JSON.parse(text);
  } catch (cause) {
    // The body was cut off in transit: count it as no answer, so that the next attempt shows whether the creation succeeded.
    if (ok && headers.get("content-type")?.includes("json")) throw cause;
  }
  if (ok && typeof body?.id === "string") return [body];
  const retryAfterMs = retryAfter(headers);
  const isLasting = !isPassing(status);
  const { code, message, request_id: requestId, fields: problems } = body?.error ?? {};
  const isApiError = !ok && typeof code === "string";
  // What answers in the place of the service may have anything there, such as an object with a list for each field.
  const fields = ([problems].flat() as FieldProblem[]).filter((problem) => problem?.field);
  const error = new PhoneproofError(
    isApiError
      ? // With the fields: what collects errors often keeps the message alone.
        [message, ...fields.map((problem) => `${problem.field} ${problem.message}`)].join(" | ")
      : `status ${status}, not from phoneproof${isLasting ? ": check baseUrl" : ""}`,
    {
      code: isApiError ? code : isLasting ? "unexpected_answer" : "no_answer",
      status,
      requestId,
      idempotencyKey,
      ...(status === 422 && { fields }),
      ...(!isLasting && { retryAfterSeconds: Math.ceil(retryAfterMs / 1000) || 1 }),
      // Only the presence of `code` was checked; the rest is what the contract guarantees.
    } as ConstructorParameters<typeof PhoneproofError>[1],
  );
  return [null, error, retryAfterMs, isLasting];
}

/** The delay in milliseconds. The header has seconds or, from a proxy, a date. */
function retryAfter(headers: FetchResponse["headers"]): number {
  const value = headers.get("retry-after") ?? "";
  const ms = /^\d+$/.test(value) ? Number(value) * 1000 : Date.parse(value) - Date.now();
  return ms > 0 ? ms : 0;
}

/** Resolves early if the signal aborts: the caller has to check the signal. */
export function pause(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve) => {
    after(ms, signal, resolve);
  });
}

/**
 * Calls back once: when the time is up, when the signal aborts, or when the returned function is called. Does not use
 * AbortSignal.any: some versions of Node garbage-collect its result before the time is up.
 */
function after(ms: number, signal: AbortSignal | undefined, then: () => void): () => void {
  const end = () => {
    clearTimeout(timer);
    signal?.removeEventListener("abort", end);
    then();
  };
  signal?.addEventListener("abort", end);
  // The time may be up since it was looked at, and Node prints a warning about a negative delay.
  const timer = setTimeout(end, Math.max(0, Math.min(ms, longestTimerMs)));
  if (signal?.aborted) end();
  return end;
}
