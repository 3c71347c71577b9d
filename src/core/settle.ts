/**
 * Where an answer goes once there is one, or why there will be none; one of the two is called, once. A promise and its
 * resolver are one too. Where thousands wait at any time, each without promises of its own leaves half as much to collect.
 */
export interface Settle<Answer> {
  resolve(answer: Answer): void;
  reject(reason: unknown): void;
}
