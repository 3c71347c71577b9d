/**
 * Receives the result of an operation: exactly one of the two methods is called, once. A promise's resolvers satisfy this
 * interface. With thousands of operations pending at any time, doing without a promise for each halves the garbage to collect.
 */
export interface Settle<Answer> {
  resolve(answer: Answer): void;
  reject(reason: unknown): void;
}
