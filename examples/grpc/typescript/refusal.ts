/** The text that shows a person why the service refused a call, for either library. */

/** The detail that every error of the service itself has. */
export interface ErrorDetail {
  /** The error code, the same as over REST: programs branch on it. */
  readonly code: string;
  /** Identifies the call in the service's log and to its support. */
  readonly requestId: string;
  /** 0: unknown. */
  readonly retryAfterSeconds: number;
  readonly fields: readonly { readonly field: string; readonly message: string }[];
}

/** `detail` is undefined if the error comes from the network or a proxy. */
export function describeRefusal(message: string, detail: ErrorDetail | undefined): string {
  if (detail === undefined) return message;
  const { code, requestId, retryAfterSeconds, fields } = detail;
  const later = retryAfterSeconds > 0 ? `, try again in ${retryAfterSeconds} s` : "";
  const wrong = fields.map(({ field, message }) => `\n  ${field}: ${message}`);
  return `${code}: ${message} (${requestId}${later})${wrong.join("")}`;
}
