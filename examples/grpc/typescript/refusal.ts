/** What a person is told of a call that the service refuses: the same with either library. */

/** The detail that every error of the service's own has. */
export interface ErrorDetail {
  /** Of the catalogue, the same over REST: what a program goes by. */
  readonly code: string;
  /** What the service's log and its people know the call by. */
  readonly requestId: string;
  /** 0: not said. */
  readonly retryAfterSeconds: number;
  readonly fields: readonly { readonly field: string; readonly message: string }[];
}

/** `detail` is undefined where the network or a proxy spoke. */
export function toldOf(message: string, detail: ErrorDetail | undefined): string {
  if (detail === undefined) return message;
  const { code, requestId, retryAfterSeconds, fields } = detail;
  const later = retryAfterSeconds > 0 ? `, try again in ${retryAfterSeconds} s` : "";
  const wrong = fields.map(({ field, message }) => `\n  ${field}: ${message}`);
  return `${code}: ${message} (${requestId}${later})${wrong.join("")}`;
}
