/** What is due and not done yet, whichever process is to do it. Null: nothing is. */
export interface Backlog {
  readonly oldestDeliverySeconds: number | null;
  /** No more than are counted: see `readBacklog`. */
  readonly deliveriesDue: number;
  readonly oldestExpirySeconds: number | null;
  /** For how long what has happened has not been counted. */
  readonly statisticsBehindSeconds: number;
}
