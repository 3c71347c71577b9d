/** Webhooks, signed according to Standard Webhooks (https://www.standardwebhooks.com). */

import { checkObject, checkOptions, classOf } from "./call.js";
import { PhoneproofError } from "./error.js";
import type { FinishedVerification } from "./verification.js";

/** The body of a webhook. */
export interface WebhookEvent {
  /** The event's type. */
  readonly type: `verification.${FinishedVerification["status"]}`;
  /** When it happened: UTC with milliseconds. */
  readonly timestamp: string;
  /** The verification as a read returned it at that instant. */
  readonly data: FinishedVerification;
}

/** The headers of a request, in the form of `fetch` or of Node. Names may be in any case. */
export type WebhookHeaders =
  | Pick<Headers, "get">
  | Readonly<Record<string, string | readonly string[] | undefined>>;

/** Options of `verifyWebhook`. */
export interface WebhookOptions {
  /** The maximum difference between the webhook's timestamp and this machine's clock, in seconds. By default 300. */
  readonly toleranceSeconds?: number | undefined;
}

/**
 * Returns the event of a webhook request if it is authentic; otherwise rejects with code `webhook_not_authentic`. Invalid
 * arguments are a `TypeError`: the receiver's own mistake.
 *
 * `body` must be what was received, before any parsing. Pass several secrets during a rotation. The same event may arrive more
 * than once, with the same `webhook-id` header: process each id only once.
 */
export async function verifyWebhook(
  body: string | Uint8Array | ArrayBuffer,
  headers: WebhookHeaders,
  secrets: string | readonly string[],
  options: WebhookOptions = {},
): Promise<WebhookEvent> {
  checkOptions(options);
  if (typeof headers?.get !== "function") checkObject(headers, "headers");
  const keys = [secrets].flat().map(keyOf);
  if (keys.length === 0) throw new TypeError("secrets must not be empty");

  const timestamp = headerOf(headers, "webhook-timestamp");
  const isRecent = Math.abs(Date.now() / 1000 - Number(timestamp)) <= (options.toleranceSeconds ?? 300);
  if (!/^\d+$/.test(timestamp) || !isRecent) throw notAuthentic("its timestamp is missing or too far off");
  // Not before: frameworks have no bytes of a request without a body, which anybody can send.
  if (!/^(String|Uint8Array|ArrayBuffer)$/.test(classOf(body))) {
    throw new TypeError("body must be as received, not parsed: a string, Uint8Array or ArrayBuffer");
  }

  const received = body as BlobPart;
  const signed = await new Blob([`${headerOf(headers, "webhook-id")}.${timestamp}.`, received]).arrayBuffer();
  const signatures = headerOf(headers, "webhook-signature").split(" ");
  for (const key of keys) {
    const imported = await crypto.subtle.importKey("raw", key, { name: "HMAC", hash: "SHA-256" }, false, [
      "sign",
    ]);
    // Once for each key, and not for each signature, of which anybody can send thousands with a large body.
    const mac = new Uint8Array(await crypto.subtle.sign("HMAC", imported, signed));
    const expected = `v1,${btoa(String.fromCharCode(...mac))}`;
    // Compares in constant time: a character that is missing differs in the length.
    const differs = (signature: string) =>
      [...expected].reduce(
        (all, _, at) => all | (expected.charCodeAt(at) ^ signature.charCodeAt(at)),
        signature.length ^ expected.length,
      );
    if (!signatures.every(differs)) {
      return JSON.parse(await new Blob([received]).text());
    }
  }
  throw notAuthentic("no signature matches the secrets");
}

/** Looks the name up case-insensitively, since servers differ in the case of header names. */
function headerOf(headers: WebhookHeaders, name: string): string {
  const value =
    typeof headers.get === "function"
      ? headers.get(name)
      : Object.entries(headers).find(([key]) => key.toLowerCase() === name)?.[1];
  return String(value ?? "");
}

function keyOf(secret: string): Uint8Array<ArrayBuffer> {
  try {
    const key = Uint8Array.from(atob(secret.replace(/^whsec_/, "")), (character) => character.charCodeAt(0));
    // Standard Webhooks requires 24 to 64 bytes: a shorter secret was truncated.
    if (key.length >= 24) return key;
  } catch {
    // The decoder's error is dropped, because it may quote the secret and must not get into a log.
  }
  throw new TypeError("a secret must be complete: whsec_ and base64");
}

function notAuthentic(why: string): PhoneproofError {
  return new PhoneproofError(`the webhook is not authentic: ${why}`, { code: "webhook_not_authentic" });
}
