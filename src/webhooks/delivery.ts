/** One exchange with a merchant's endpoint. */

import { Agent, request } from "undici";
import { AddressRefused, createAddressPolicy, type ResolveName } from "./address-policy.ts";
import { signedHeaders } from "./signature.ts";

/** What is sent. */
export interface Message {
  readonly url: string;
  /** `evt_…`, the same at every attempt. */
  readonly id: string;
  /** Whole seconds since the epoch, fresh at every attempt. */
  readonly timestamp: number;
  readonly body: string;
  /** The first signs first. */
  readonly secrets: readonly Uint8Array[];
}

/** What came of it. */
export interface Exchange {
  readonly durationMs: number;
  /** Null: there was no answer. */
  readonly status: number | null;
  /** Why it failed, for a person; null: it did not. */
  readonly error: string | null;
  /** The beginning of the answer's body; null: there was no answer. */
  readonly answer: string | null;
  /** The answer's Retry-After. */
  readonly retryAfter: string | null;
}

export interface Endpoints {
  /** Why nothing is sent to a URL, as far as it says so itself; null: it is. Resolves no name. */
  refusalOf(url: URL): string | null;
  /** Rejects only where `signal` aborts: every other end is an exchange's. */
  send(message: Message, signal?: AbortSignal): Promise<Exchange>;
  /** Cuts every connection. */
  close(): Promise<void>;
}

const userAgent = "phoneproof-webhooks";
/** For connecting, TLS, the request and the whole answer together, however slowly it drips. */
const wholeExchangeMs = 15_000;
const keptAnswerBytes = 1024;
const keptErrorLength = 300;
/**
 * For connecting to one address of several, before the next is tried: a packet that gets lost is sent again after a second. Node
 * gives a quarter of one. With much more, a few addresses that do not answer would leave none for the one that does.
 */
const oneAddressMs = 1_500;
/**
 * A connection that has been idle for longer is not used again: an endpoint that does not say for how long it keeps one may be
 * closing it (after two seconds, some), and what is lost by that would be a failed attempt.
 */
const idleMs = 1_000;
/** Of interim answers (1xx) nobody needs more than a few; without a bound they would keep this process at work. */
const mostInterim = 16;

export function createEndpoints(options: {
  readonly allowPrivate: boolean;
  readonly timeoutMs?: number;
  readonly resolve?: ResolveName;
  /** Sent besides: which span this belongs to, where the service is traced. */
  readonly traceHeaders?: (() => Record<string, string>) | undefined;
}): Endpoints {
  const { timeoutMs = wholeExchangeMs } = options;
  const policy = createAddressPolicy(options);
  const agent = new Agent({
    // No bound an origin: whoever sends bounds what is under way an endpoint and in all, and so the connections. One
    // origin may have endpoints of many merchants, of which one that hangs must not take the others' connections.
    pipelining: 1,
    allowH2: false,
    connectTimeout: timeoutMs,
    // The exchange as a whole is timed below; a time-out for its parts would only hide which it was.
    headersTimeout: 0,
    bodyTimeout: 0,
    keepAliveTimeout: idleMs,
    connect: {
      lookup: policy.lookup,
      autoSelectFamily: true,
      autoSelectFamilyAttemptTimeout: oneAddressMs,
    },
  });

  async function exchange(message: Message, cut: AbortController): Promise<Omit<Exchange, "durationMs">> {
    const url = URL.parse(message.url);
    const refusal = url === null ? "is none" : policy.refusalOf(url);
    if (url === null || refusal !== null) return unanswered(`refused: the URL ${refusal}`);
    let status: number | null = null;
    let retryAfter: string | null = null;
    const kept = new KeptAnswer();
    let interim = 0;
    try {
      const answering = request(url, {
        dispatcher: agent,
        method: "POST",
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
      const answer = await untilAborted(answering, cut.signal);
      status = answer.statusCode;
      retryAfter = [answer.headers["retry-after"]].flat()[0] ?? null;
      // Leaving the loop early closes the connection: what is beyond is not worth waiting for.
      for await (const chunk of answer.body) if (kept.add(chunk)) break;
      return { status, error: complaintAbout(status), answer: kept.text(), retryAfter };
    } catch (error) {
      const answer = status === null ? null : kept.text();
      return { status, error: describe(cut.signal.aborted ? cut.signal.reason : error), answer, retryAfter };
    }
  }

  return {
    refusalOf: policy.refusalOf,

    async send(message, signal) {
      signal?.throwIfAborted();
      const startedAt = performance.now();
      // Not AbortSignal.any: what it ties to a signal that lives as long as the process is freed late.
      const cut = new AbortController();
      const stop = () => cut.abort(signal?.reason);
      const tooLong = () => cut.abort(new Error(`took longer than ${timeoutMs / 1000} s`));
      const timer = setTimeout(tooLong, timeoutMs);
      signal?.addEventListener("abort", stop, { once: true });
      try {
        const ended = await exchange(message, cut);
        signal?.throwIfAborted();
        return { durationMs: Math.round(performance.now() - startedAt), ...ended };
      } finally {
        clearTimeout(timer);
        signal?.removeEventListener("abort", stop);
      }
    },
    close: () => agent.destroy(),
  };
}

/** undici hears of an abort only once it is connected; what it does with the connection then is its own affair. */
function untilAborted<T>(answering: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const abort = () => reject(signal.reason);
    signal.addEventListener("abort", abort, { once: true });
    answering.then(resolve, reject).finally(() => signal.removeEventListener("abort", abort));
  });
}

function unanswered(error: string): Omit<Exchange, "durationMs"> {
  return { status: null, error, answer: null, retryAfter: null };
}

/** The first KiB, as text that can be stored: no NUL, nothing that is not UTF-8, no half of a character at its end. */
class KeptAnswer {
  readonly #chunks: Buffer[] = [];
  #length = 0;

  /** Answers whether that is enough. */
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

/** Null: success. */
function complaintAbout(status: number): string | null {
  if (status >= 200 && status <= 299) return null;
  if (status >= 300 && status <= 399 && status !== 304)
    return `answered ${status}: redirects are not followed`;
  return `answered ${status}`;
}

function describe(thrown: unknown): string {
  const error = causeOf(thrown);
  if (error instanceof AddressRefused) return `refused: ${error.message}`;
  const code = "code" in error && typeof error.code === "string" ? error.code : "";
  // What undici takes for impossible, such as a 101 to whoever asked for nothing of the kind.
  if (code === "ERR_ASSERTION") return "answered what HTTP does not allow";
  const message = reasonIn(error.message);
  const said = message.includes(code) ? message : `${message} (${code})`;
  return said.replace(/[\s\u0000-\u001f]+/g, " ").slice(0, keptErrorLength) || "failed";
}

/**
 * What a merchant can read of it. OpenSSL's account is thread:error:code:library:function:reason:file:line; behind a
 * certificate's defect stands Node's advice on how to start Node.
 */
function reasonIn(message: string): string {
  const tls = /^[0-9A-F]+:error:[0-9A-F]+:[^:]*:[^:]*:([^:]+):/.exec(message)?.[1];
  if (tls !== undefined) return `TLS: ${tls}`;
  return message.replace(/; if the root CA is installed locally.*$/s, "");
}

/** Node gathers what happened at each address of a name; the first says enough. */
function causeOf(thrown: unknown): Error {
  if (thrown instanceof AggregateError && thrown.errors[0] instanceof Error) return thrown.errors[0];
  return thrown instanceof Error ? thrown : new Error(String(thrown));
}
