/** The one clock that decides, the database's, as far as a process knows it. */
export interface Clock {
  /** Milliseconds since the epoch, good to a minute. A promise where the database has to be asked. */
  now(): number | Promise<number>;
  /** What the database has just said. */
  learn(ms: number): void;
}
