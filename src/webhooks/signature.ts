/** Standard Webhooks (https://www.standardwebhooks.com): what is signed, and the headers that carry it. */

import { createHmac, createSecretKey } from "node:crypto";

export interface SignedHeaders {
  readonly "webhook-id": string;
  readonly "webhook-timestamp": string;
  readonly "webhook-signature": string;
}

/**
 * One signature a secret, in their order, separated by spaces: a receiver accepts any that it can verify.
 * `timestamp` is in whole seconds since the epoch.
 */
export function signedHeaders(message: {
  readonly id: string;
  readonly timestamp: number;
  readonly body: string;
  readonly secrets: readonly Uint8Array[];
}): SignedHeaders {
  const { id, timestamp, body, secrets } = message;
  const signatures = secrets.map((secret) => {
    // As a key object: of bytes Node makes one in a way that takes four times as long as all the rest.
    const key = createSecretKey(secret);
    const signature = createHmac("sha256", key).update(`${id}.${timestamp}.${body}`).digest("base64");
    return `v1,${signature}`;
  });
  return {
    "webhook-id": id,
    "webhook-timestamp": String(timestamp),
    "webhook-signature": signatures.join(" "),
  };
}
