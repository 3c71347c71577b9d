/** This process's estimate of the database's clock, which decides every expiry. */
export interface Clock {
  /** Milliseconds since the epoch, accurate to a minute. A promise only if the database has to be queried. */
  now(): number | Promise<number>;
  /** Adjusts the estimate to a time that the database has just returned. */
  learn(ms: number): void;
}
