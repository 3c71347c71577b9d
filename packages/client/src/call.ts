/** One call of the API, tried again until there is an answer or the time is up. */

import { type FieldProblem, PhoneproofError } from "./error.js";

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
  /** Instead of the runtime's own `fetch`: for proxies, tracing, tests. It has to heed `init.signal`, which ends what takes too long. */
  readonly fetch?: ((url: string, init: RequestInit) => Promise<Response>) | undefined;
}

/** What every call takes. */
export interface CallOptions {
  /**
   * Gives the call up, which then rejects with code `aborted` and the signal's reason as `cause`. A creation may have been
   * made all the same: the error has its `idempotencyKey`.
   */
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
type Setback = readonly [error: PhoneproofError, retryAfterMs?: number, isLasting?: boolean];

export const defaultTimeoutMs = 30_000;

const longestPauseMs = 5_000;

/** A longer one goes off at once. */
const longestTimerMs = 2 ** 31 - 1;

/** Of a proxy: it cannot do what is asked, wants a login for the network, or does not take the service's certificate. */
const lasting = [501, 505, 511, 526];

/**
 * Whether it is a status with which a proxy says what will pass, such as Cloudflare's 520 to 524. The service's own are
 * 429 and 503.
 */
const isPassing = (status: number) =>
  (status >= 500 && !lasting.includes(status)) || [408, 425, 429].includes(status);

/**
 * Next.js keeps what is read with `fetch` unless it is told not to: a verification would be pending for ever, and phones
 * would lie in its cache. Workers without the option refuse it, and keep nothing that was asked for with a key.
 */
const notKept: RequestInit = "cache" in (globalThis.Request?.prototype ?? {}) ? { cache: "no-store" } : {};

/** On a clock that nobody sets. */
export const now = () => performance.now();

/** Not by instanceof: test runners and sandboxes have more than one of each class. */
export const classOf = (value: unknown) => Object.prototype.toString.call(value).slice(8, -1);

export function checkObject(value: unknown, argument: string): void {
  if (typeof value !== "object" || value === null || Array.isArray(value))
    throw new TypeError(`${argument} must be an object`);
}

/**
 * With a time that is none, a pause would be no pause and a call would never end; what is no signal, such as its
 * controller, would give nothing up.
 */
export function checkOptions(options: object, argument = "options"): void {
  checkObject(options, argument);
  for (const [name, value] of Object.entries(options)) {
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
    const answer = await attempt(settings, call, leftMs);
    if (!Array.isArray(answer)) return answer as Answer;
    // Array.isArray does not narrow to a readonly tuple.
    const [error, retryAfterMs = 0, isLasting] = answer as unknown as Setback;
    const waitMs = Math.max(retryAfterMs, pauseMs * (0.5 + Math.random() / 2));
    if (!signal?.aborted && (isLasting || now() + waitMs >= until)) throw error;
    await pause(waitMs, signal);
    // A timer may be late.
    if (!signal?.aborted && now() >= until) throw error;
  }
}

async function attempt(settings: Settings, call: Call, timeoutMs: number): Promise<object | Setback> {
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
      // Followed, a creation would arrive elsewhere as a read.
      redirect: "manual",
      signal: attemptEnds.signal,
    });
    return understood(response, await response.text(), idempotencyKey);
  } catch (cause) {
    const message = `${method} ${path}: no answer from ${baseUrl}`;
    return [new PhoneproofError(message, { code: "no_answer", idempotencyKey, cause })];
  } finally {
    end();
  }
}

/** What is seen of an answer before it is known whose it is. */
interface Body {
  readonly id?: unknown;
  readonly error?: {
    readonly code?: unknown;
    readonly message: string;
    readonly request_id?: string;
    readonly fields?: readonly FieldProblem[];
  };
}

function understood(response: Response, text: string, idempotencyKey: string | undefined): object | Setback {
  const { status, ok, headers } = response;
  let body: Body | null = null;
  try {
    body = JSON.parse(text);
  } catch (cause) {
    // Something in between has cut it off: whether it was made the next attempt will tell.
    if (ok && headers.get("content-type")?.includes("json")) throw cause;
  }
  if (ok && typeof body?.id === "string") return body;
  const retryAfterMs = retryAfter(headers);
  const isLasting = !isPassing(status);
  const told = body?.error;
  const isTold = !ok && typeof told?.code === "string";
  const error = new PhoneproofError(
    isTold ? told.message : `status ${status}, not of phoneproof${isLasting ? ": check baseUrl" : ""}`,
    {
      code: isTold ? told.code : isLasting ? "unexpected_answer" : "no_answer",
      status,
      requestId: told?.request_id,
      idempotencyKey,
      ...(status === 422 && { fields: told?.fields ?? [] }),
      ...(!isLasting && { retryAfterSeconds: Math.ceil(retryAfterMs / 1000) || 1 }),
      // That it has a code was seen; the rest is the contract's word.
    } as ConstructorParameters<typeof PhoneproofError>[1],
  );
  return [error, retryAfterMs, isLasting];
}

/** Seconds, or a date as proxies may send it. */
function retryAfter(headers: Headers): number {
  const value = headers.get("retry-after") ?? "";
  const ms = /^\d+$/.test(value) ? Number(value) * 1000 : Date.parse(value) - Date.now();
  return ms > 0 ? ms : 0;
}

/** Ends early where the signal aborts: whoever goes on then looks at it. */
export function pause(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve) => {
    after(ms, signal, resolve);
  });
}

/**
 * Calls back once the time is up or the signal aborts, or when what it returns is called. Not AbortSignal.any: of what
 * it makes, some versions of Node lose sight before the time is up.
 */
function after(ms: number, signal: AbortSignal | undefined, then: () => void): () => void {
  const end = () => {
    clearTimeout(timer);
    signal?.removeEventListener("abort", end);
    then();
  };
  signal?.addEventListener("abort", end);
  const timer = setTimeout(end, Math.min(ms, longestTimerMs));
  if (signal?.aborted) end();
  return end;
}
