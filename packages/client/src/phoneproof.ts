import {
  type CallOptions,
  callService,
  checkObject,
  checkOptions,
  defaultTimeoutMs,
  now,
  pause,
  type Settings,
} from "./call.js";
import { PhoneproofError } from "./error.js";
import type {
  CreatedVerification,
  FinishedVerification,
  NewVerification,
  Verification,
} from "./verification.js";

/** Options of `create`. */
export interface CreateOptions extends CallOptions {
  /**
   * 8 to 128 characters of `A-Z a-z 0-9 _ . : -`; use a new one for each attempt of a person. By default a random one, which
   * makes the retries of this one call safe. If you pass a key that you stored beforehand, calls after a crash of your own
   * process are safe too: the same key and body get the first answer again, for 24 hours.
   */
  readonly idempotencyKey?: string | undefined;
}

/** Options of `waitUntilFinished`. */
export interface WaitOptions {
  /** Aborts the wait, which then rejects with code `aborted` and the signal's reason as `cause`. */
  readonly signal?: AbortSignal | undefined;
  /** How long to wait before the last read, in milliseconds. By default until the verification has expired. */
  readonly timeoutMs?: number | undefined;
  /** The pause between the first two reads, in milliseconds; it grows up to 5000. By default 1000. */
  readonly pollMs?: number | undefined;
}

/** The API of one project and environment. */
export interface Phoneproof {
  /**
   * Creates a verification. Show the person its `destination` and `sms_text`, or open its `verification_url`.
   *
   * If an answer is lost, the request is retried with the same key, so that only one verification is created. Waits as long as
   * `Retry-After` says if that fits into `timeoutMs`; otherwise rejects at once.
   */
  create(verification?: NewVerification, options?: CreateOptions): Promise<CreatedVerification>;
  /** Reads a verification's current state. */
  read(id: string, options?: CallOptions): Promise<Verification>;
  /**
   * Reads repeatedly until the verification is verified, expired or cancelled. A read that fails with `no_answer`, 429 or 503
   * is ignored until `timeoutMs` is over or the verification has expired, unless `Retry-After` goes beyond that. Every read
   * counts toward API usage: if many people wait at a time, use a webhook instead.
   */
  waitUntilFinished(id: string, options?: WaitOptions): Promise<FinishedVerification>;
  /** Cancels a pending verification. Cancelling a cancelled one changes nothing. */
  cancel(id: string, options?: CallOptions): Promise<Verification>;
}

const longestPollMs = 5_000;

/** The default validity, used until a read has returned the actual expiry. */
const usualValidityMs = 600_000;

/** The minimum timeout of the last read. */
const lastReadMs = 2_000;

/** The fields of a failed read's error that are used. */
interface Failure {
  readonly code?: string;
  readonly retryAfterSeconds?: number;
}

/** A client for your server. It holds no connection and no state; one instance is enough. */
export function createPhoneproof(settings: Settings): Phoneproof {
  checkSettings(settings);

  const read = async (id: string, options: CallOptions = {}): Promise<Verification> => {
    checkOptions(options);
    return callService(settings, { ...options, method: "GET", path: pathOf(id) });
  };

  return {
    read,

    async create(verification = {}, options = {}) {
      checkObject(verification, "verification");
      checkOptions(options);
      const { idempotencyKey = crypto.randomUUID() } = options;
      if (!/^[\w.:-]{8,128}$/.test(idempotencyKey)) {
        throw new TypeError("idempotencyKey must be 8 to 128 characters of A-Z a-z 0-9 _ . : -");
      }
      const body = JSON.stringify(verification);
      return callService(settings, {
        ...options,
        method: "POST",
        path: "/v1/verifications",
        body,
        idempotencyKey,
      });
    },

    async waitUntilFinished(id, options = {}) {
      checkOptions(options);
      const { signal, timeoutMs = Number.POSITIVE_INFINITY, pollMs = 1_000 } = options;
      const until = now() + timeoutMs;
      let expires = now() + usualValidityMs;
      for (let pauseMs = pollMs; ; pauseMs = Math.min(pauseMs * 1.5, longestPollMs)) {
        let waitMs = pauseMs * (0.75 + Math.random() / 2);
        try {
          const readMs = Math.max(until - now(), lastReadMs);
          const verification = await read(id, {
            signal,
            timeoutMs: Math.min(readMs, settings.timeoutMs ?? defaultTimeoutMs),
          });
          if (verification.status !== "pending") return verification as FinishedVerification;
          if (now() >= until) {
            throw new PhoneproofError(`${id} is still pending`, { code: "still_pending" });
          }
          // Computed with the service's clock, so that the read after the expiry is neither early nor late.
          const expiresMs = Date.parse(verification.expires_at) - Date.parse(verification.server_time);
          expires = now() + expiresMs;
          waitMs = Math.min(waitMs, Math.max(expiresMs, 50));
        } catch (error) {
          // An error that a retry does not change has no Retry-After.
          const { code, retryAfterSeconds = 0 } = error as Failure;
          const retryAfterMs = retryAfterSeconds * 1000;
          const isLasting = code !== "no_answer" && retryAfterMs === 0;
          if (isLasting || now() + retryAfterMs >= Math.min(until, expires)) throw error;
          waitMs = Math.max(waitMs, retryAfterMs);
        }
        await pause(Math.min(waitMs, until - now()), signal);
      }
    },

    async cancel(id, options = {}) {
      checkOptions(options);
      return callService(settings, { ...options, method: "POST", path: `${pathOf(id)}/cancel` });
    },
  };
}

/** `fetch` would reject these only at the first call, and with the API key in its message. */
function checkSettings(settings: Settings): void {
  checkOptions(settings, "settings");
  const { baseUrl, apiKey, fetch } = settings;
  if (
    typeof baseUrl !== "string" ||
    !/^https?:\/\/[^@?#]+$/.test(baseUrl) ||
    !URL.canParse(`${baseUrl}/v1`)
  ) {
    throw new TypeError("baseUrl must be an http(s) URL, such as https://phoneproof.example");
  }
  // A service token has the same form; the service would refuse it at each call.
  if (!/^(?!pp_svc_)[!-~]+$/.test(apiKey ?? ""))
    throw new TypeError("apiKey must be an API key: pp_live_… or pp_test_…");
  if (fetch !== undefined && typeof fetch !== "function") throw new TypeError("fetch must be a function");
}

/** A URL parser would treat an id of dots as a path segment and remove it. */
function pathOf(id: string): string {
  if (typeof id !== "string" || !/^(?!\.+$)[!-~]+$/.test(id))
    throw new TypeError("id must be a verification's id: vrf_…");
  return `/v1/verifications/${encodeURIComponent(id)}`;
}
