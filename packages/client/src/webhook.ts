/** Webhooks, signed as Standard Webhooks (https://www.standardwebhooks.com) has it. */

import { PhoneproofError } from "./error.js";
import type { FinishedVerification } from "./verification.js";

/** What a webhook tells. */
export interface WebhookEvent {
  /** What happened. */
  readonly type: `verification.${FinishedVerification["status"]}`;
  /** When it happened: UTC with milliseconds. */
  readonly timestamp: string;
  /** The verification as a read answered it at that instant. */
  readonly data: FinishedVerification;
}

/** The headers of a request: as `fetch` has them, or as Node has them. */
export type WebhookHeaders =
  | Pick<Headers, "get">
  | Readonly<Record<string, string | readonly string[] | undefined>>;

/** How strict to be. */
export interface WebhookOptions {
  /** How far its timestamp may be from this machine's clock, in seconds. By default 300. */
  readonly toleranceSeconds?: number | undefined;
}

/**
 * The event of a request to your webhook, if it is authentic; otherwise throws with code `webhook_not_authentic`.
 *
 * `body` must be what was received, before anything has parsed it. Give several secrets while one is being changed.
 * The same event can come more than once, with the same header `webhook-id`: work on each id once.
 */
export async function verifyWebhook(
  body: string | Uint8Array,
  headers: WebhookHeaders,
  secrets: string | readonly string[],
  { toleranceSeconds = 300 }: WebhookOptions = {},
): Promise<WebhookEvent> {
  const header = (name: string) =>
    String(
      (typeof headers.get === "function" ? headers.get(name) : headers[name as keyof typeof headers]) ?? "",
    );
  const keys = [secrets].flat().map(keyOf);
  const timestamp = header("webhook-timestamp");
  const isRecent = Math.abs(Date.now() / 1000 - Number(timestamp)) <= toleranceSeconds;
  if (!/^\d+$/.test(timestamp) || !isRecent) throw notAuthentic("its timestamp is missing or too far off");

  const bytes = typeof body === "string" ? encode(body) : body;
  const signed = concat(encode(`${header("webhook-id")}.${timestamp}.`), bytes);
  const signatures = header("webhook-signature").split(" ").flatMap(signatureOf);
  for (const key of keys) {
    const imported = await crypto.subtle.importKey("raw", key, hmac, false, ["verify"]);
    for (const signature of signatures) {
      // Compares in constant time.
      if (await crypto.subtle.verify(hmac.name, imported, signature, signed)) {
        return JSON.parse(new TextDecoder().decode(bytes));
      }
    }
  }
  throw notAuthentic("no signature is by one of these secrets");
}

const hmac = { name: "HMAC", hash: "SHA-256" };

const encode = (text: string) => new TextEncoder().encode(text);

function concat(first: Uint8Array, second: Uint8Array): Uint8Array<ArrayBuffer> {
  const whole = new Uint8Array(first.length + second.length);
  whole.set(first);
  whole.set(second, first.length);
  return whole;
}

const fromBase64 = (text: string) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));

function keyOf(secret: string): Uint8Array<ArrayBuffer> {
  try {
    const key = fromBase64(secret.replace(/^whsec_/, ""));
    if (key.length > 0) return key;
  } catch {
    // What it says of the secret must not come into a log.
  }
  throw new TypeError("a secret must be whsec_ followed by base64");
}

/** Other versions than v1 and what is no base64 are passed over. */
function signatureOf(text: string): Uint8Array<ArrayBuffer>[] {
  try {
    return text.startsWith("v1,") ? [fromBase64(text.slice(3))] : [];
  } catch {
    return [];
  }
}

function notAuthentic(why: string): PhoneproofError {
  return new PhoneproofError(`the webhook is not authentic: ${why}`, { code: "webhook_not_authentic" });
}
