/** The state that the server sends to an open window. */
export interface WindowState {
  /**
   * The status, a dot, and the hint's time in milliseconds since the epoch. Changes whenever any field but `remainingMs` does.
   */
  readonly version: string;
  readonly status: "pending" | "verified" | "expired" | "cancelled";
  readonly remainingMs: number;
  readonly hint: "another_number" | "web_sent" | "two_codes" | "without_code" | "muted" | null;
  /** Masked; null until verified. */
  readonly phone: string | null;
  readonly carrier: string | null;
  /** The postMessage to the opener, for exactly this origin; null while pending, and if no origin was given. */
  readonly notice: { readonly origin: string; readonly message: object } | null;
  /** Where the user returns to; null while pending, and if no URL was given. */
  readonly returnUrl: string | null;
}

/** The receipt of a message from the simulated phone. */
export interface SimulatedReceipt {
  readonly outcome: string;
  /** Text for the user, in the page's language. */
  readonly message: string;
}
