/** Sends to the endpoints of merchants: one HTTP exchange with one of them. */

import { afterRunning } from "../running-time.ts";
import { AddressRefused, createAddressPolicy } from "./address-policy.ts";
import { keepConnections } from "./connections.ts";
import type { ResolveName } from "./name-resolution.ts";
import { signedHeaders } from "./signature.ts";

/** The request. */
export interface Message {
  readonly url: string;
  /** `evt_…`, the same at every attempt. */
  readonly id: string;
  /** Whole seconds since the epoch, fresh at every attempt. */
  readonly timestamp: number;
  readonly body: string;
  /** In the order of the signatures. */
  readonly secrets: readonly Uint8Array[];
}

/** The outcome. */
export interface Exchange {
  readonly durationMs: number;
  /** Null: no response. */
  readonly status: number | null;
  /** Why it failed, as text for people; null if it succeeded. */
  readonly error: string | null;
  /** The beginning of the response body; null: no response. */
  readonly answer: string | null;
  /** The response's Retry-After header. */
  readonly retryAfter: string | null;
}

export interface Endpoints {
  /** Why nothing is sent to the URL, judged by its text alone, without resolving its name; null: it is allowed. */
  refusalOf(url: URL): string | null;
  /** Rejects only if `signal` aborts or the HTTP client cannot be loaded; every other failure is reported in the exchange. */
  send(message: Message, signal?: AbortSignal): Promise<Exchange>;
  /** Closes every connection at once. */
  close(): Promise<void>;
}

const userAgent = "phoneproof-webhooks";
/** Covers connecting, TLS, the request and the whole response, however slowly it arrives. */
const wholeExchangeMs = 15_000;
const keptAnswerBytes = 1024;
const keptErrorLength = 300;
/**
 * Time to connect to one of several addresses before the next is tried: a lost packet is retransmitted after a second. Node's
 * default is a quarter of a second. With much more, a few unresponsive addresses would leave no time for the one that answers.
 */
const oneAddressMs = 1_500;
/**
 * A connection idle for longer is not reused: an endpoint that does not announce its keep-alive time may be closing it (some do
 * after two seconds), and a request lost that way would be a failed attempt.
 */
const idleMs = 1_000;
/**
 * The longest that it is kept if its endpoint announces more. Some networks forget idle connections after six minutes and tell
 * nobody: an attempt on such a connection would only time out.
 */
const longestIdleMs = 60_000;
/** No endpoint needs more than a few interim responses (1xx); without a limit it could keep this process busy with them. */
const mostInterim = 16;

export function createEndpoints(options: {
  readonly allowPrivate: boolean;
  readonly timeoutMs?: number;
  readonly resolve?: ResolveName;
  /** Sent in addition: the trace context headers, if the service is traced. */
  readonly traceHeaders?: (() => Record<string, string>) | undefined;
}): Endpoints {
  const { timeoutMs = wholeExchangeMs } = options;
  const policy = createAddressPolicy(options);
  const connections = keepConnections(
    {
      // No limit per origin: the caller limits the attempts in progress per endpoint and in total, and so the connections.
      // Endpoints of many merchants may share an origin, and one that hangs must not take the others' connections.
      pipelining: 1,
      allowH2: false,
      connectTimeout: timeoutMs,
      // The exchange as a whole has a timeout, below; timeouts for its parts would only obscure it.
      headersTimeout: 0,
      bodyTimeout: 0,
      keepAliveTimeout: idleMs,
      keepAliveMaxTimeout: longestIdleMs,
      connect: {
        lookup: policy.lookup,
        autoSelectFamily: true,
        autoSelectFamilyAttemptTimeout: oneAddressMs,
      },
    },
    idleMs,
  );

  async function exchange(message: Message, cut: AbortController): Promise<Omit<Exchange, "durationMs">> {
    const url = URL.parse(message.url);
    const refusal = url === null ? "is none" : policy.refusalOf(url);
    if (url === null || refusal !== null) return unanswered(`refused: the URL ${refusal}`);
    let status: number | null = null;
    let retryAfter: string | null = null;
    const kept = new KeptAnswer();
    let interim = 0;
    const { pool, done } = connections.to(url.origin);
    try {
      const answer = await pool.request({
        method: "POST",
        path: url.pathname + url.search,
        headers: {
          "content-type": "application/json",
          "user-agent": userAgent,
          ...options.traceHeaders?.(),
          ...signedHeaders(message),
        },
        body: message.body,
        signal: cut.signal,
        onInfo: ({ statusCode }) => {
          interim += 1;
          if (statusCode < 100) cut.abort(new Error(`answered ${statusCode}, which is no status of HTTP`));
          if (interim > mostInterim)
            cut.abort(new Error(`sent more than ${mostInterim} interim answers (1xx)`));
        },
      });
      status = answer.statusCode;
      retryAfter = [answer.headers["retry-after"]].flat()[0] ?? null;
      // Leaving the loop early closes the connection: the rest of the body is not worth waiting for.
      for await (const chunk of answer.body) if (kept.add(chunk)) break;
      return { status, error: errorOf(status), answer: kept.text(), retryAfter };
    } catch (error) {
      const answer = status === null ? null : kept.text();
      return { status, error: describe(cut.signal.aborted ? cut.signal.reason : error), answer, retryAfter };
    } finally {
      done();
    }
  }

  return {
    refusalOf: policy.refusalOf,

    async send(message, signal) {
      signal?.throwIfAborted();
      const startedAt = performance.now();
      // Not AbortSignal.any: what it attaches to a signal that lives as long as the process is freed late.
      const cut = new AbortController();
      const stop = () => cut.abort(signal?.reason);
      const tooLong = () => cut.abort(new Error(`took longer than ${timeoutMs / 1000} s`));
      const timer = afterRunning(timeoutMs, tooLong);
      signal?.addEventListener("abort", stop, { once: true });
      try {
        const ended = await exchange(message, cut);
        signal?.throwIfAborted();
        return { durationMs: Math.round(performance.now() - startedAt), ...ended };
      } finally {
        timer.cancel();
        signal?.removeEventListener("abort", stop);
      }
    },
    close: connections.close,
  };
}

function unanswered(error: string): Omit<Exchange, "durationMs"> {
  return { status: null, error, answer: null, retryAfter: null };
}

/**
 * Collects the first KiB and decodes it to text that can be stored: no NUL, no invalid UTF-8, no partial character at the end.
 */
class KeptAnswer {
  readonly #chunks: Buffer[] = [];
  #length = 0;

  /** Returns whether enough is collected. */
  add(chunk: Buffer): boolean {
    this.#chunks.push(chunk);
    this.#length += chunk.length;
    return this.#length >= keptAnswerBytes;
  }

  text(): string {
    const bytes = Buffer.concat(this.#chunks).subarray(0, keptAnswerBytes);
    return new TextDecoder("utf-8", { ignoreBOM: true })
      .decode(bytes, { stream: bytes.length === keptAnswerBytes })
      .replaceAll("\u0000", "\ufffd");
  }
}

/** The error for a status; null if it means success. */
function errorOf(status: number): string | null {
  if (status >= 200 && status <= 299) return null;
  if (status >= 300 && status <= 399 && status !== 304)
    return `answered ${status}: redirects are not followed`;
  return `answered ${status}`;
}

function describe(thrown: unknown): string {
  const error = causeOf(thrown);
  if (error instanceof AddressRefused) return `refused: ${error.message}`;
  const code = "code" in error && typeof error.code === "string" ? error.code : "";
  // undici calls nothing else so of a request that is under way.
  if (error.message === "bad response") return "answered 100 Continue, for which the request does not ask";
  // undici's assertion for a response it considers impossible, as 101 without an upgrade request can be, or its words for that.
  if (code === "ERR_ASSERTION" || error.message === "bad upgrade")
    return "sent a response that HTTP does not allow";
  const message = reasonIn(error.message);
  const described = message.includes(code) ? message : `${message} (${code})`;
  return described.replace(/[\s\u0000-\u001f]+/g, " ").slice(0, keptErrorLength) || "failed";
}

/**
 * The part of an error message that helps a merchant. OpenSSL's has the form
 * thread:error:code:library:function:reason:file:line; to a certificate error Node appends advice on how to start Node.
 */
function reasonIn(message: string): string {
  const tls = /^[0-9A-F]+:error:[0-9A-F]+:[^:]*:[^:]*:([^:]+):/.exec(message)?.[1];
  if (tls !== undefined) return `TLS: ${tls}`;
  return message.replace(/; if the root CA is installed locally.*$/s, "");
}

/**
 * Node collects the errors of all addresses of a name; the first one says enough. Not that of an address to which this machine has
 * no route, as to IPv4 where it has only IPv6: it says nothing about the endpoint.
 */
function causeOf(thrown: unknown): Error {
  const errors: unknown[] = thrown instanceof AggregateError ? thrown.errors : [];
  const hasRoute = (error: unknown) => (error as NodeJS.ErrnoException).code !== "ENETUNREACH";
  const error = errors.find(hasRoute) ?? errors[0] ?? thrown;
  return error instanceof Error ? error : new Error(String(error));
}
