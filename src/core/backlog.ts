/** Work that is due and not done yet, by whichever process. Null: none. */
export interface Backlog {
  readonly oldestDeliverySeconds: number | null;
  /** Capped: see `readBacklog`. */
  readonly deliveriesDue: number;
  readonly oldestExpirySeconds: number | null;
  /** How far the statistics lag behind the database's clock. */
  readonly statisticsBehindSeconds: number;
}
