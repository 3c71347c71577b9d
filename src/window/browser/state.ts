/** What the server tells an open window. */
export interface WindowState {
  /** The status, a dot, and when what the hint is of was noticed, since the epoch. Changes whenever the rest does, but for the time. */
  readonly version: string;
  readonly status: "pending" | "verified" | "expired" | "cancelled";
  readonly remainingMs: number;
  readonly hint: "another_number" | "web_sent" | "two_codes" | "without_code" | "muted" | null;
  /** Masked; null until verified. */
  readonly phone: string | null;
  readonly carrier: string | null;
  /** For the opener, and for exactly this origin; null while pending, and where none is registered. */
  readonly notice: { readonly origin: string; readonly message: object } | null;
  /** Where to go; null while pending, and where none is registered. */
  readonly returnUrl: string | null;
}

/** What became of a message of the played phone. */
export interface PlayedReceipt {
  readonly outcome: string;
  /** For a person, in the page's language. */
  readonly message: string;
}
