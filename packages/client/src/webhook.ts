/** Webhooks, signed as Standard Webhooks (https://www.standardwebhooks.com) has it. */

import { checkObject, checkOptions, classOf } from "./call.js";
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

/** The headers of a request: as `fetch` has them, or as Node has them. Their names may be in any case. */
export type WebhookHeaders =
  | Pick<Headers, "get">
  | Readonly<Record<string, string | readonly string[] | undefined>>;

/** How strict to be. */
export interface WebhookOptions {
  /** How far its timestamp may be from this machine's clock, in seconds. By default 300. */
  readonly toleranceSeconds?: number | undefined;
}

/**
 * The event of a request to your webhook, if it is authentic; otherwise rejects with code `webhook_not_authentic`. What
 * is wrong with the arguments themselves is a `TypeError`: no request has caused it.
 *
 * `body` must be what was received, before anything has parsed it. Give several secrets while one is being changed.
 * The same event can come more than once, with the same header `webhook-id`: work on each id once.
 */
export async function verifyWebhook(
  body: string | Uint8Array | ArrayBuffer,
  headers: WebhookHeaders,
  secrets: string | readonly string[],
  options: WebhookOptions = {},
): Promise<WebhookEvent> {
  checkOptions(options);
  if (!/^(String|Uint8Array|ArrayBuffer)$/.test(classOf(body))) {
    throw new TypeError("body must be what was received, not parsed: a string, Uint8Array or ArrayBuffer");
  }
  checkObject(headers, "headers");
  const keys = [secrets].flat().map(keyOf);
  if (keys.length === 0) throw new TypeError("secrets must be at least one");

  const timestamp = headerOf(headers, "webhook-timestamp");
  const isRecent = Math.abs(Date.now() / 1000 - Number(timestamp)) <= (options.toleranceSeconds ?? 300);
  if (!/^\d+$/.test(timestamp) || !isRecent) throw notAuthentic("its timestamp is missing or too far off");

  const received = body as BlobPart;
  const signed = await new Blob([`${headerOf(headers, "webhook-id")}.${timestamp}.`, received]).arrayBuffer();
  const signatures = headerOf(headers, "webhook-signature").split(" ").flatMap(signatureOf);
  for (const key of keys) {
    const imported = await crypto.subtle.importKey("raw", key, { name: "HMAC", hash: "SHA-256" }, false, [
      "verify",
    ]);
    for (const signature of signatures) {
      // Compares in constant time.
      if (await crypto.subtle.verify("HMAC", imported, signature, signed)) {
        return JSON.parse(await new Blob([received]).text());
      }
    }
  }
  throw notAuthentic("no signature is by one of these secrets");
}

/** Servers differ in the case that they give to names. */
function headerOf(headers: WebhookHeaders, name: string): string {
  const value =
    typeof headers.get === "function"
      ? headers.get(name)
      : Object.entries(headers).find(([key]) => key.toLowerCase() === name)?.[1];
  return String(value ?? "");
}

const fromBase64 = (text: string) => Uint8Array.from(atob(text), (character) => character.charCodeAt(0));

function keyOf(secret: string): Uint8Array<ArrayBuffer> {
  try {
    const key = fromBase64(secret.replace(/^whsec_/, ""));
    // Standard Webhooks has 24 to 64 bytes: a shorter one was cut.
    if (key.length >= 24) return key;
  } catch {
    // What it says of the secret must not come into a log.
  }
  throw new TypeError("a secret must be whsec_ followed by base64, uncut");
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
