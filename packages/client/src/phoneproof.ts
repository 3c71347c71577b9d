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

/** How to create. */
export interface CreateOptions extends CallOptions {
  /**
   * 8 to 128 characters of `A-Z a-z 0-9 _ . : -`, new for each attempt of a person. By default a random one, which
   * makes the retries of this one call safe. Give one that you have stored before, and calls after a crash of
   * your own process are safe, too: the same key and body get the first answer again, for 24 hours.
   */
  readonly idempotencyKey?: string | undefined;
}

/** How to wait. */
export interface WaitOptions {
  /** Gives the wait up, which then rejects with code `aborted` and the signal's reason as `cause`. */
  readonly signal?: AbortSignal | undefined;
  /** How long to wait before the last look, in milliseconds. By default until the verification has expired. */
  readonly timeoutMs?: number | undefined;
  /** The pause between the first two looks, in milliseconds; it grows up to 5000. By default 1000. */
  readonly pollMs?: number | undefined;
}

/** The API of one project and environment. */
export interface Phoneproof {
  /**
   * Creates a verification. Show the person its `destination` and `sms_text`, or open its `verification_url`.
   *
   * Repeats the request where an answer is lost, with the same key, so that however often it is sent one
   * verification is made. Waits as long as `Retry-After` says, where that fits into `timeoutMs`; else rejects at once.
   */
  create(verification?: NewVerification, options?: CreateOptions): Promise<CreatedVerification>;
  /** Reads a verification as it is now. */
  read(id: string, options?: CallOptions): Promise<Verification>;
  /**
   * Reads until the verification is verified, expired or cancelled. A look that fails with `no_answer`, 429 or 503 is
   * passed over until `timeoutMs` is over or the verification has expired, unless `Retry-After` goes beyond that. Each
   * look is a call that counts; where many wait at a time, let a webhook tell you.
   */
  waitUntilFinished(id: string, options?: WaitOptions): Promise<FinishedVerification>;
  /** Cancels a pending verification. Cancelling a cancelled one changes nothing. */
  cancel(id: string, options?: CallOptions): Promise<Verification>;
}

const longestPollMs = 5_000;

/** How long a verification lives unless its project says otherwise: until a look has told when it expires. */
const usualValidityMs = 600_000;

/** What the last look may take. */
const lastLookMs = 2_000;

/** What a look may have failed with. */
interface Failure {
  readonly code?: string;
  readonly retryAfterSeconds?: number;
}

/** A client for your server: it holds no connection and no state, and one is enough. */
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
          const readMs = Math.max(until - now(), lastLookMs);
          const verification = await read(id, {
            signal,
            timeoutMs: Math.min(readMs, settings.timeoutMs ?? defaultTimeoutMs),
          });
          if (verification.status !== "pending") return verification as FinishedVerification;
          if (now() >= until) {
            throw new PhoneproofError(`${id} is still pending`, { code: "still_pending" });
          }
          // By the service's clock, so that the look after the expiry is neither early nor late.
          const expiresMs = Date.parse(verification.expires_at) - Date.parse(verification.server_time);
          expires = now() + expiresMs;
          waitMs = Math.min(waitMs, Math.max(expiresMs, 50));
        } catch (error) {
          // What will not pass has no Retry-After.
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

/** What `fetch` would object to only at the first call, and then with the key in its message. */
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
  if (!/^[!-~]+$/.test(apiKey ?? ""))
    throw new TypeError("apiKey must be an API key: pp_live_… or pp_test_…");
  if (fetch !== undefined && typeof fetch !== "function") throw new TypeError("fetch must be a function");
}

/** An id of dots would be taken for a step up the path. */
function pathOf(id: string): string {
  if (typeof id !== "string" || !/^(?!\.+$)[!-~]+$/.test(id))
    throw new TypeError("id must be the id of a verification: vrf_…");
  return `/v1/verifications/${encodeURIComponent(id)}`;
}
